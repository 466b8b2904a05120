//! Tests of who is there.

use super::*;
use crate::{Grant, Mode, PhaseKind, Work};

fn settings(mode: Mode) -> ControlSettings {
    ControlSettings {
        workers: 2,
        mode,
        goes_on_without_chief: true,
    }
}

/// Two workers in a training.
fn training(mode: Mode) -> Control {
    let settings = settings(mode);
    let mut control = Control::new(settings.clone());
    for worker in 0..2 {
        control.hello(Duration::ZERO, worker, 1, &settings).unwrap();
        control
            .enter(worker, "epoch", PhaseKind::Train, 0..2)
            .unwrap();
    }
    control
}

fn given(control: &mut Control, worker: usize) -> Option<Work> {
    let grant = control.next(Duration::ZERO, worker, "epoch", &[]);
    match grant.unwrap() {
        Grant::Work(work) => Some(work),
        _ => None,
    }
}

#[test]
fn a_process_whose_place_another_has_taken_does_not_leave_for_it() {
    let mut control = training(Mode::Async);
    let settings = settings(Mode::Async);
    control.hello(Duration::ZERO, 0, 2, &settings).unwrap();
    let work = given(&mut control, 0).unwrap();
    assert!(!control.leave(0, 1));
    assert!(!control.chief_has_left() && !control.is_over());
    assert!(control.heard(Duration::ZERO, 0, 2) && control.members[&0].is_there);
    assert_eq!(given(&mut control, 0), Some(work));
    assert!(control.leave(0, 2) && control.chief_has_left());
}

#[test]
fn what_a_worker_has_not_done_when_it_leaves_goes_to_others() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 0 }] {
        let mut control = training(mode);
        let own = given(&mut control, 0).unwrap();
        let left = given(&mut control, 1).unwrap();
        control.leave(1, 1);
        let results = crate::Results {
            weight: 1.0,
            rows: 1.0,
            staleness: 0,
            bytes: Vec::new(),
        };
        control.done(0, "epoch", own.id, results).unwrap();
        let next = given(&mut control, 0).map(|work| work.id);
        assert_eq!(next, Some(left.id), "{mode}");
    }
}

/// The first worker may die while it writes the last checkpoint: another in its place finds all that it needs.
#[test]
fn a_job_is_not_over_before_its_first_worker_has_left() {
    let mut control = training(Mode::Async);
    assert!(control.leave(1, 1));
    control.gone(Duration::ZERO, 0, 1);
    assert!(!control.is_over());
    let settings = settings(Mode::Async);
    control.hello(Duration::ZERO, 0, 2, &settings).unwrap();
    assert!(control.leave(0, 2) && control.is_over());
}

/// Worker 1 was lost before the control was started again.
#[test]
fn a_control_that_comes_back_does_not_wait_long_for_a_worker_that_was_lost() {
    let mode = Mode::Sync { backup_workers: 0 };
    let settings = settings(mode);
    let mut control = training(mode);
    control.members.clear();
    control.started = None;
    control.recovered();
    let now = Duration::from_secs(5);
    control.hello(now, 0, 1, &settings).unwrap();
    assert!(control.is_expected(now, 1));
    assert!(!control.is_expected(now + BACK_WITHIN, 1));
}

#[test]
fn nobody_is_lost_while_the_server_itself_sleeps() {
    let mut control = training(Mode::Async);
    let (lease, work_within) = (Duration::from_secs(10), Duration::from_secs(600));
    let tick = |control: &mut Control, second| {
        control.tick(Duration::from_secs(second), lease, work_within);
        (0..2)
            .map(|worker| control.members[&worker].is_there)
            .collect::<Vec<_>>()
    };
    for second in [0, 1, 61, 62] {
        assert_eq!(tick(&mut control, second), [true; 2], "{second}");
    }
    assert!(control.heard(Duration::from_secs(62), 0, 1));
    for second in 63..71 {
        assert_eq!(tick(&mut control, second), [true; 2], "{second}");
    }
    // Worker 1 was silent for the second before the pause, and for ten after it.
    assert_eq!(tick(&mut control, 71), [true, false]);
}

/// It closed the connection that a server did not answer, and opens the next one.
#[test]
fn the_first_worker_may_open_another_connection_before_its_loss_ends_the_job() {
    let settings = ControlSettings {
        goes_on_without_chief: false,
        ..settings(Mode::Async)
    };
    let (lease, work_within) = (Duration::from_secs(10), Duration::from_secs(600));
    let closed = || {
        let mut control = Control::new(settings.clone());
        control.hello(Duration::ZERO, 0, 1, &settings).unwrap();
        control.tick(Duration::ZERO, lease, work_within);
        control.gone(Duration::from_millis(500), 0, 1);
        assert_eq!(control.failure(), None);
        control
    };
    let is_lost_by = |control: &mut Control, seconds| {
        (1..=seconds).for_each(|second| {
            control.tick(Duration::from_secs(second), lease, work_within);
        });
        control.failure().is_some()
    };
    let mut control = closed();
    control
        .hello(Duration::from_secs(1), 0, 1, &settings)
        .unwrap();
    assert!(!is_lost_by(&mut control, 10));
    assert!(is_lost_by(&mut control, 12));
    let mut control = closed();
    assert!(!is_lost_by(&mut control, 2));
    assert!(is_lost_by(&mut control, 3));
    // Another process in its place goes on from a checkpoint.
    let mut control = closed();
    control
        .hello(Duration::from_secs(1), 0, 2, &settings)
        .unwrap();
    assert!(control.failure().is_some());
    // Others need no such time: what they were given goes on.
    let mut control = closed();
    control
        .hello(Duration::from_secs(1), 1, 1, &settings)
        .unwrap();
    control.gone(Duration::from_secs(1), 1, 1);
    assert!(!control.members[&1].is_there && control.failure().is_none());
}
