//! Programs and machines in a replay, as GDB sees them, forward and backward.
//!
//! The debugger is outside of the guest. It reads what it shows from the structures of the guest's
//! kernel: the threads of a process, the registers that a thread has saved when it entered the
//! kernel, its page tables. It stops the guest by stop points of the software CPU, and goes back in
//! time by the snapshots of the replay. Nothing in the guest's memory or time changes.
//!
//! A **position** is a virtual time in ns. Each instruction, and each delivery of an interrupt or
//! an exception, takes one.
//!
//! There are two **views**. In the view of a program, threads are those of a process, in user mode.
//! In the kernel's view, they are the processors, with all that they execute. Both go forward and
//! backward by steps of a processor: in the view of a program, of the one that executes the thread.
//!
//! | module | contents |
//! |---|---|
//! | `view` | what threads are, and which one a processor executes |
//! | `kernel_view` | processors as threads |
//! | `kernel_code` | the code in the file of the kernel |
//! | `layout` | where the guest's kernel keeps what is read here |
//! | `task_registers` | registers as the kernel and the processor keep them |
//! | `tasks` | threads, registers and memory at the present position |
//! | `tracer_stop` | why a task stops for the agent |
//! | `agent` | the connection to the guest's agent |
//! | `processes` | the processes of the run, and which one is debugged |
//! | `replay` | runs to a position, and the events of the run |
//! | `kept` | the snapshots in a file, for later sessions |
//! | `debugger` | what is debugged, and where it can be |
//! | `opening` | where the process begins and ends, and the first position |
//! | `forward`, `backward` | execution up to the next stop |
//! | `departure` | the future of a program or machine that was changed |
//! | `changes`, `machine_changes` | the changes |
//! | `events` | signals, forks and system calls as stops |
//! | `execs` | programs that the process executes one after the other |
//! | `follow` | the child of a fork |
//! | `client_points` | stop points of the client, and their conditions |
//! | `stops` | what a stop at one of them is for the client |
//! | `branches`, `logged` | the branches that a thread has executed |
//! | `branch_trace` | the branch traces of the client |
//! | `calls` | the call of the function in which a thread is |
//! | `monitor` | commands of the user |
//! | `python` | functions of a Python program |
//! | `program_files` | the program and its libraries, from the recording |
//! | `target` | what GDB asks for |
//! | `strace` | system calls in the form of strace |

mod agent;
mod backward;
mod branch_trace;
mod branches;
mod calls;
mod changes;
mod client_points;
mod debugger;
mod departure;
mod events;
mod execs;
mod follow;
mod forward;
mod kept;
mod kernel_code;
mod kernel_view;
mod layout;
mod logged;
mod machine_changes;
mod monitor;
mod opening;
mod processes;
mod program_files;
mod python;
mod replay;
mod stops;
pub mod strace;
mod target;
mod task_registers;
mod tasks;
mod tracer_stop;
mod view;

pub use agent::{AgentPort, Connection};
pub use debugger::{Debugger, Parts};
pub use kept::{SnapshotFile, SnapshotFiles};
pub use layout::Layout;
pub use program_files::ProgramFiles;
pub use python::python_frames;
pub use tasks::{Task, Tasks};
pub use view::View;
