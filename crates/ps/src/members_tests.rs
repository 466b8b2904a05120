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
