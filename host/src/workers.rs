//! Threads that start before the process is confined, and work afterwards.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that do what they are told.
#[derive(Debug)]
pub struct Workers {
    jobs: Sender<Job>,
    count: usize,
}

impl Workers {
    /// Starts `count` threads. They have begun when this returns, so that they need no system call
    /// for their beginning any more.
    ///
    /// # Errors
    /// The host starts no more threads.
    pub fn start(count: usize) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let queue: Arc<Mutex<Receiver<Job>>> = Arc::new(Mutex::new(queue));
        let (begun, ready) = sync_channel(count);
        for _ in 0..count {
            let (queue, begun) = (queue.clone(), begun.clone());
            Builder::new().name("worker".into()).spawn(move || {
                let _ = begun.send(());
                // The lock is released before the job begins.
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(job) = next() {
                    job();
                }
            })?;
        }
        drop(begun);
        let begun = ready.iter().take(count).count();
        match begun == count {
            true => Ok(Self { jobs, count }),
            false => Err(io::Error::other("a thread has ended")),
        }
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Lets a thread do `job` as soon as one is free.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The threads live as long as this: what a job has is dropped if they have panicked.
        let _ = self.jobs.send(Box::new(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_at_the_same_time() {
        let workers = Workers::start(2).unwrap();
        assert_eq!(workers.count(), 2);
        let (to_second, from_first) = channel();
        let (to_first, from_second) = channel();
        let (done, results) = channel();
        let first_done = done.clone();
        workers.run(move || {
            to_second.send(1).unwrap();
            first_done.send(from_second.recv().unwrap()).unwrap();
        });
        workers.run(move || {
            to_first.send(2).unwrap();
            done.send(from_first.recv().unwrap()).unwrap();
        });
        let mut results: Vec<i32> = results.iter().collect();
        results.sort_unstable();
        assert_eq!(results, [1, 2]);
    }
}
