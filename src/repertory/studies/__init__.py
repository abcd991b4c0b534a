"""Many runs: which distribution suits a problem, and what each part of an agent is worth."""
