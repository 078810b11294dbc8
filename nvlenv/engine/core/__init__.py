"""The engine itself: a live cluster in the arrays of the simulator, and the transactions on it.

Where a question is answered:

    what is a job, and what can it ask for?           `nvlenv.engine.model.jobs`
    what is that in the simulator's arrays?           `live`: parts of jobs, and their rows
    how does a job become an answer?                  `engine` (place), `attempt` (run)
    which rack, and which one on a tie?               the policy: `nvlenv.policies.heuristics`, in words `explain`
    who leaves for a job of higher priority?          `evictions` (make_way); for GPUs, `nvlenv.simulator.preemption`
    who else leaves?                                  `evictions` (tests_end, and replace_node where a node fails)
    why was it refused, in all and rack by rack?      `explain` (why_no_room, why_no_quota)
    who holds which cpu, memory and places for pods?  `book`
    what has to move to free slices?                  `defrag`
    when could a hero start?                          `whatif`
    what survives a restart?                          `state_file`
"""
