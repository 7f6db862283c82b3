//! A log of branches that keeps all entries.

use std::sync::{Arc, Mutex};

use vbts_cpu::{BranchLog, LogBuffer, LogEntry, LogScope, LogSink, Probe};

use super::Guest;

/// The entries that a log has handed over.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<LogEntry>>>);

/// Keeps the entries in a log, and buffers to be used again.
#[derive(Debug)]
struct Sink {
    log: Log,
    free: Option<LogBuffer>,
}

impl LogSink for Sink {
    fn exchange(&mut self, mut full: LogBuffer) -> LogBuffer {
        self.log.0.lock().unwrap().extend(full.entries());
        full.clear();
        let free = self.free.take().unwrap_or_else(|| full.another());
        self.free = Some(full);
        free
    }
}

impl Log {
    /// Logs the branches of `g` from now on.
    pub fn attach(g: &mut Guest, scope: LogScope, probes: Vec<Probe>) -> Self {
        let log = Self::default();
        let sink = Box::new(Sink {
            log: log.clone(),
            free: None,
        });
        g.soft
            .cpu
            .attach_log(Box::new(BranchLog::new(scope, probes, sink)));
        log
    }

    /// All entries so far.
    pub fn entries(&self, g: &mut Guest) -> Vec<LogEntry> {
        g.soft.cpu.flush_log();
        self.0.lock().unwrap().clone()
    }

    /// All branches so far.
    pub fn branches(&self, g: &mut Guest) -> Vec<(u64, u64)> {
        let entries = self.entries(g).into_iter();
        let branches = entries.filter_map(|entry| match entry {
            LogEntry::Branch { from, to } => Some((from, to)),
            _ => None,
        });
        branches.collect()
    }
}
