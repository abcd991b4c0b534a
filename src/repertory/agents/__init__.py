"""Agents: pure JAX, arrays in, arrays out; no input or output, no clock, no hidden state."""
