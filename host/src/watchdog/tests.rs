use super::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

/// A watchdog that reports the event for which it would end the process.
fn watchdog() -> (Arc<Watchdog>, Receiver<Event>) {
    let watchdog = Arc::new(Watchdog::new().unwrap());
    let (report, reports) = channel();
    let rescue = Box::new(move |event| report.send(event).unwrap());
    watchdog.set_rescue(rescue, |_| panic!("the rescue ends"));
    (watchdog, reports)
}

/// A thread that is watched and runs `work` until the test drops the watchdog.
fn watched(watchdog: &Arc<Watchdog>, work: impl Fn(&Watchdog) + Send + 'static) {
    let (watchdog, (ready, is_ready)) = (watchdog.clone(), channel());
    std::thread::spawn(move || {
        watchdog.watch().unwrap();
        ready.send(()).unwrap();
        while Arc::strong_count(&watchdog) > 1 {
            work(&watchdog);
        }
    });
    is_ready.recv().unwrap();
}

#[test]
fn a_busy_thread_that_does_not_answer_is_stuck() {
    for event in [Event::Timeout, Event::Signal(15)] {
        let (watchdog, reports) = watchdog();
        watched(&watchdog, |_| std::hint::spin_loop());
        watchdog.asker().ask(event);
        assert_eq!(reports.recv_timeout(Duration::from_secs(120)), Ok(event));
    }
}

#[test]
fn a_busy_thread_that_answers_is_not_stuck() {
    let (watchdog, reports) = watchdog();
    watched(&watchdog, |watchdog| {
        let began = Instant::now();
        while began.elapsed() < TICK {}
        watchdog.answer();
    });
    let asker = watchdog.asker();
    for _ in 0..20 {
        asker.ask(Event::Timeout);
        let none = reports.recv_timeout(TICK);
        assert_eq!(none, Err(RecvTimeoutError::Timeout));
    }
}

#[test]
fn nothing_is_stuck_without_an_event_and_after_the_run() {
    let (watchdog, reports) = watchdog();
    watched(&watchdog, |_| std::hint::spin_loop());
    let none = |wait| assert!(reports.recv_timeout(wait).is_err());
    none(2 * MAX_USED);
    watchdog.stop_watching();
    watchdog.asker().ask(Event::Timeout);
    none(2 * MAX_USED);
}

#[test]
fn time_counts_in_which_the_thread_runs_or_is_blocked_in_one_call() {
    let second = Duration::from_secs(1);
    let looks = |used: Vec<Duration>| {
        let mut patience = Patience::new(5 * second);
        used.into_iter().position(|used| patience.look(used, TICK))
    };
    // It works: a second, in ticks of processor time.
    let works = (1..50).map(|n| 5 * second + n * TICK);
    assert_eq!(looks(works.collect()), Some(9));
    // It is blocked.
    assert_eq!(looks(vec![5 * second; 200]), Some(99));
    // It makes many short calls.
    let calls = (1..5000).map(|n| 5 * second + n / 50 * Duration::from_micros(1));
    assert_eq!(looks(calls.collect()), None);
    // It has ended, and its clock with it.
    assert_eq!(looks(vec![Duration::ZERO; 50]), None);
}

#[test]
fn progress_of_another_thread_is_patience() {
    let (watchdog, reports) = watchdog();
    watched(&watchdog, |watchdog| watchdog.note_progress());
    watchdog.asker().ask(Event::Timeout);
    assert!(reports.recv_timeout(3 * MAX_USED).is_err());
}

/// A watchdog whose run loop neither answers nor is stuck: it makes many short calls.
fn with_processor(
    work: impl Fn(&WatchedProcessor, &Signals) + Send + 'static,
) -> (Arc<Watchdog>, Receiver<Event>) {
    let (watchdog, reports) = watchdog();
    watched(&watchdog, |_| std::thread::sleep(Duration::from_millis(1)));
    let (thread, signals) = (watchdog.clone(), Arc::<Signals>::default());
    let (ready, is_ready) = channel();
    std::thread::spawn(move || {
        let processor = thread.watch_processor(signals.clone()).unwrap();
        ready.send(()).unwrap();
        // The test and the run loop have it, too.
        while Arc::strong_count(&thread) > 2 {
            work(&processor, &signals);
        }
    });
    is_ready.recv().unwrap();
    (watchdog, reports)
}

#[test]
fn a_busy_processor_that_does_not_answer_is_stuck() {
    let (watchdog, reports) = with_processor(|_, _| std::hint::spin_loop());
    watchdog.asker().ask(Event::Timeout);
    let stuck = reports.recv_timeout(Duration::from_secs(120));
    assert_eq!(stuck, Ok(Event::Timeout));
}

#[test]
fn a_processor_that_answers_kicks_is_not_stuck() {
    let (watchdog, reports) = with_processor(|processor, signals| {
        if signals.get() & Signals::KICK != 0 {
            signals.lower(Signals::KICK);
            processor.answer();
        }
    });
    // One that has ended is not stuck either.
    let ended = watchdog.clone();
    let thread = std::thread::spawn(move || drop(ended.watch_processor(Arc::default())));
    thread.join().unwrap();
    watchdog.asker().ask(Event::Timeout);
    assert!(reports.recv_timeout(3 * MAX_USED).is_err());
}

#[test]
fn a_rescue_that_needs_a_lock_of_the_stuck_thread_does_not_hold_up_the_end() {
    static ENDED_FOR: Mutex<Option<Event>> = Mutex::new(None);
    let watchdog = Arc::new(Watchdog::new().unwrap());
    let lock = Arc::new(Mutex::new(()));
    let held = lock.clone();
    watchdog.set_rescue(
        Box::new(move |_| drop(held.lock().unwrap_or_else(PoisonError::into_inner))),
        |event| *ENDED_FOR.lock().unwrap() = Some(event),
    );
    let guard = lock.lock().unwrap();
    watched(&watchdog, |_| std::hint::spin_loop());
    watchdog.asker().ask(Event::Signal(15));
    let began = Instant::now();
    while ENDED_FOR.lock().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(TICK);
    }
    assert_eq!(*ENDED_FOR.lock().unwrap(), Some(Event::Signal(15)));
    drop(guard);
}
