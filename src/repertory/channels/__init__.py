"""How workers exchange data; numpy only, but for the shapes of a learner state.

| channel | carries | written by |
| --- | --- | --- |
| `Latest` | the newest value, older ones are skipped | the publisher |
| `Lanes` | an append-only ring for each environment | the actor |
| `Slots`: of batches, unrolls, gradients | fixed slots, handed over and handed back | filler, releaser |
| `Mailbox`: inference, evaluation | request and reply | asker, replier |
| `Counters` | one row of numbers for each worker | the worker |
| `Snapshot` | a state that survives its owner | the owner |
| `Shared` | one live copy, written by many without locks; one machine only | all workers |

Each declares its arrays: shape, type, which side writes them, and the counter that commits them. A writer fills what is
not yet read and then moves the counter that readers look at first; so any process may be killed at any moment, and no
reader sees half a write. `mirror` copies what is new into the same arrays elsewhere, data first, counter last.
"""
