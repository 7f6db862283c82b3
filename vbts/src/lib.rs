//! A virtual machine monitor that gives a Linux guest a working Intel Branch Trace Store.
//!
//! This package has the program `vbts`. Its parts are crates of their own: `vbts-vmm` is the
//! virtual machine, `vbts-capture` the trace of a program in it, `vbts-symbols` names addresses,
//! `vbts-trace` has the format of kept traces, `vbts-analysis` the reports, `vbts-suite` the
//! regression suite for kernels, and `vbts-cli` the command line.
