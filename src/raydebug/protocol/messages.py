"""Names of the messages between a job's process and the gateway, and the targets that a client attaches to.

What the gateway asks a process over the control channel is in questions.py.
"""

# Handshake, in this order; REFUSED ends it at any point.
HELLO, PROOF, WELCOME, REFUSED = "hello", "proof", "welcome", "refused"

# Purpose of a dial-in: a session with pydevd, the control channel, one snapshot.
PAUSE, CONTROL, SNAPSHOT = "pause", "control", "snapshot"

# To hand over a snapshot: OFFER of the process, WANTED, SNAPSHOT, KEPT.
OFFER = "offer"
"""Its SnapshotSummary."""
WANTED = "wanted"
"""Whether the gateway keeps it: {wanted}; the first of each kind of crash and rank, up to a limit."""
KEPT = "kept"
"""It has arrived. SNAPSHOT as a message is a SnapshotMessage."""

# DAP events and a request of our own in a session with pydevd.
PAUSE_EVENT = "raydebugPause"
"""Sent just before a thread stops: {threadId, record: PauseRecord}."""
BROKEN_OFF_EVENT = "raydebugPauseBrokenOff"
"""A suspended thread was resumed without a client, e.g. its task was cancelled: {threadId, reason}."""
SAY_REQUEST = "raydebugSay"
"""Has a paused thread write a line to the job's log: a JobLine."""
COPIES = "raydebugCopies"
"""Argument of a client's `attach` and later requests: the copies of its folders on the nodes, as `pathMappings`."""

ANSWERED, SILENT, ENDED, UNKNOWN = "answered", "silent", "ended", "unknown"
"""What becomes of a question to a process, beside FAILED. UNKNOWN is also the message of an answer: its raydebug does
not know the question."""

# Control channel, process to gateway, beside answers.
KNOWN = "known"
"""The first message: breakpoints the process was started with, and those compiled in: a KnownBreakpoints."""
BREAK = "break"
"""State of one breakpoint in the process: {id, state, message}."""
LAST_SPANS = "lastSpans"
"""Before BYE: a SpansRecord."""
BIRTH, KILLS, BYE = "birth", "kills", "bye"
"""After KNOWN; before it sends a signal to a process; as it ends by itself: a Birth, Kill, LastWords (death.py)."""
EXIT, OS_EXIT = "exit", "os._exit"
FAULT_MARK = b"Fatal Python error: "
"""What faulthandler writes first (CPython Modules/faulthandler.c), into the same connection; no message begins so."""
SET, WAITING, FAILED = "set", "waiting", "failed"
"""States of a breakpoint in a process: compiled in, its file is not loaded yet, impossible."""
SENT = "sent"
"""The gateway's own: sent to the process, which has not answered yet."""

# Targets of `attach`, beside the number of a pause.
PID, WORKER, INSTANCE = "pid:", "worker:", "instance:"
"""`pid:PID`, `pid:PID@IP`, `worker:ID` (a prefix of the id is enough), and `instance:ID` of one process for ever."""
THREAD = "#"
"""Between one of these targets and the thread that is to pause, by its name in `stacks`; without it the active one."""
