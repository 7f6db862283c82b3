# The replay runs to its end before it answers.
set remotetimeout 86400
# Files of the host, or of the recording if the host has others.
set sysroot ROOT
# A library may have a path from there.
set solib-search-path DIRECTORY
# Code that the program has not executed yet is not in its memory.
set trust-readonly-sections on
# The commands below change the time.
set stack-cache off
set code-cache off
set breakpoint pending auto
# VIEW

define when
  monitor when
end
document when
Show where the replay is: virtual time, thread, instructions.
end

define goto
  if $argc == 1
    monitor goto $arg0
  else
    monitor goto $arg0 $arg1
  end
  maintenance flush register-cache
  frame
end
document goto
Go to another time: goto start, goto end, goto crash, goto time NS, or goto record N, which is behind
branch N of the first thread of the process. vbts replay --format raw --follow none numbers those of
the first process in the same way. Of a kernel, it is behind branch N of the machine, as in
vbts replay --record.
end

define last-write
  if $argc == 1
    eval "monitor last-write %lu %lu", (unsigned long) &($arg0), (unsigned long) sizeof($arg0)
  else
    eval "monitor last-write %lu %lu", (unsigned long) ($arg0), (unsigned long) ($arg1)
  end
  maintenance flush register-cache
  frame
end
document last-write
Go back to the last write to a variable: last-write VARIABLE, or last-write ADDRESS SIZE.
end

# GDB names the selected thread to the replay when it reads registers.
define select-thread
  maintenance flush register-cache
  set $selected = $pc
end
document select-thread
Tell the replay which thread is selected: a part of other commands.
end

define who-called
  select-thread
  monitor who-called
  maintenance flush register-cache
  frame
end
document who-called
Go back to the call of the function in which the thread is, by its branches: the contents of the
stack do not matter.
end

define processes
  monitor processes
end
document processes
Show the processes of the run. vbts debug --process PID or --process NAME debugs another one.
end

define python-frames
  select-thread
  eval "monitor python-frames %lu", (unsigned long) &_PyRuntime
end
document python-frames
Show the Python functions that the thread executes, with files and lines. The program is CPython
3.13, and gdb knows its file.
end

define records
  select-thread
  if $argc == 0
    monitor records
  else
    monitor records $arg0
  end
end
document records
Show the last branches of the thread: records [N].
end

define branch-trace
  monitor branch-trace $arg0
end
document branch-trace
Set where "record btrace" begins a trace: branch-trace from-start, at the first instruction of the
program, or branch-trace from-here, at the present one.
end

target remote SOCKET
set remotetimeout 600
