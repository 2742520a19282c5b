"""Names of the messages between a job's process and the gateway, and the targets that a client attaches to."""

# Handshake, in this order; REFUSED ends it at any point.
HELLO, PROOF, WELCOME, REFUSED = "hello", "proof", "welcome", "refused"

# Purpose of a dial-in: a session with pydevd, the control channel, the texts of a watchdog (WATCHDOG), one snapshot.
PAUSE, CONTROL, SNAPSHOT = "pause", "control", "snapshot"

# To hand over a snapshot: OFFER of the process, WANTED, SNAPSHOT, KEPT.
OFFER = "offer"
"""Its SnapshotSummary."""
WANTED = "wanted"
"""Whether the gateway keeps it: {wanted}; the first of each kind of crash and rank, up to a limit."""
KEPT = "kept"
"""It has arrived. SNAPSHOT as a message is a SnapshotMessage."""

# DAP events of our own in a session with pydevd.
PAUSE_EVENT = "raydebugPause"
"""Sent just before a thread stops: {threadId, record: PauseRecord}."""
BROKEN_OFF_EVENT = "raydebugPauseBrokenOff"
"""A suspended thread was resumed without a client, e.g. its task was cancelled: {threadId, reason}."""

# Control channel, gateway to process.
BREAKS = "breaks"
"""Breakpoints to add and to remove: {add: [BreakpointSpec], remove: [id]}."""
DESCRIBE = "describe"
"""Requests DESCRIBED."""
PAUSE_REQUEST = "pause"
"""Requests a pause at the current line: {request}."""
WITHDRAW = "withdraw"
"""Cancels a PAUSE_REQUEST: {request}."""
STACKS = "stacks"
"""Requests STACKED: {digests}, whether digests may stand for the frames of its threads."""
FRAMES = "frames"
"""Requests FRAMES_SENT: {request, digests}, of the last answers to STACKS."""

SAVE_PAUSE = "savePause"
"""Requests a snapshot of a paused thread: {id, threadId}."""

ANSWERED, SILENT, WATCHDOG = "answered", "silent", "watchdog"
"""States of a process in the list of stacks; the stacks of the last one come from its watchdog."""

RUNS_AGAIN = b"\0"
"""On the connection of a watchdog: what it wrote is over."""

# Control channel, process to gateway.
KNOWN = "known"
"""The first message: breakpoints the process was started with, and those compiled in: {breaks, set}."""
BREAK = "break"
"""State of one breakpoint in the process: {id, state, message}."""
SET, WAITING, FAILED = "set", "waiting", "failed"
"""States of a breakpoint in a process: compiled in, its file is not loaded yet, impossible."""
SENT = "sent"
"""The gateway's own: sent to the process, which has not answered yet."""
TOLD = "told"
"""SENT between gateway and client: the word that those of 0.1 wait for."""
DESCRIBED = "described"
"""Answer to DESCRIBE: a WorkRecord."""
STACKED = "stacked"
"""Answer to STACKS: a StacksRecord."""
FRAMES_SENT = "framesSent"
"""Answer to FRAMES: a FramesRecord."""
PAUSE_REFUSED = "refused"
"""Why a requested pause is impossible: {request, cause}."""

# Targets of `attach`, beside the number of a pause.
PID, WORKER = "pid:", "worker:"
"""`pid:PID`, `pid:PID@IP`, and `worker:ID` (a prefix of the id is enough)."""
