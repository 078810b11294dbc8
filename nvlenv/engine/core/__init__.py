"""The engine itself: a live cluster in the arrays of the simulator, and the transactions on it.

Where a question is answered:

    what is a job, and what can it ask for?           `nvlenv.engine.model.jobs`
    what is that in the simulator's terms?            `parts`, and as rows of its arrays `live`
    how does a job become an answer?                  `engine` (place), `attempt` (run)
    which rack, and which one on a tie?               the policy: `nvlenv.policies.heuristics`, in words `explain`
    who leaves for a job of higher priority?          for GPUs `nvlenv.simulator.preemption`, for the rest `evictions`
    who else leaves?                                  verification pods, tests of idle nodes: they give way to any job
    what happens to jobs on a node that fails?        `evictions` (replace_node)
    why was it refused, in all and rack by rack?      `explain` (why_no_room, why_no_quota)
    who holds which cpu, memory and places for pods?  `book`
    what has to move to free slices?                  `defrag`
    when could a hero start?                          `whatif`
    what survives a restart?                          `state_file`
"""
