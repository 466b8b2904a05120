use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::testing::submitted;

fn life() -> Life {
    Life::new(1, submitted(Path::new("/"), json!({}), json!({})))
}

/// The events that change the state.
fn changes() -> Vec<Event> {
    let why = String::new;
    vec![
        Event::Prepared,
        Event::Running,
        Event::Succeeded,
        Event::Failed { why: why() },
        Event::Cancelling { why: why() },
        Event::Cancelled,
    ]
}

#[test]
fn a_job_ends_once_and_in_a_state_that_is_reached_by_what_happened() {
    // All sequences of five events: whatever is refused changes nothing, and nothing follows an end.
    let mut ends = std::collections::BTreeSet::new();
    for number in 0..6usize.pow(5) {
        let mut life = life();
        let mut path = vec![life.state];
        for place in 0..5 {
            let event = changes().swap_remove(number / 6usize.pow(place) % 6);
            let before = life.clone();
            match life.apply(2 + u64::from(place), event) {
                Ok(()) => path.push(life.state),
                Err(_) => assert_eq!(life, before),
            }
        }
        let last = path.len() - 1;
        for (at, state) in path.iter().enumerate() {
            assert!(!state.is_final() || at == last, "{path:?}");
        }
        assert_eq!(life.ended.is_some(), life.state.is_final());
        assert_eq!(life.started.is_some(), path.contains(&State::Running));
        if life.state == State::Succeeded {
            assert!(path.contains(&State::Running), "{path:?}");
        }
        if life.state == State::Cancelled {
            assert!(path.contains(&State::Cancelling), "{path:?}");
        }
        ends.insert(life.state);
    }
    assert_eq!(ends.len(), 7, "every state is reached: {ends:?}");
}

#[test]
fn a_job_that_has_ended_takes_labels_and_nothing_else() {
    let mut life = life();
    for event in [Event::Prepared, Event::Running, Event::Succeeded] {
        life.apply(2, event).unwrap();
    }
    let started = Event::TaskStarted {
        task: "worker-0".into(),
        attempt: 1,
        place: "1".into(),
    };
    assert!(life.apply(3, started).is_err());
    assert!(
        life.apply(
            3,
            Event::Attempt {
                number: 2,
                why: None
            }
        )
        .is_err()
    );
    let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    let before = life.revision;
    life.apply(
        3,
        Event::Labelled {
            labels: labels.clone(),
        },
    )
    .unwrap();
    assert_eq!((life.labels, life.revision), (labels, before + 1));
}

#[test]
fn a_task_that_we_kill_is_none_that_lacked_memory() {
    let killed = |told| {
        let (code, signal) = (None, Some(9));
        TaskEnd { code, signal, told }.to_string()
    };
    assert!(killed(false).contains("want of memory"));
    assert!(killed(true).contains("when it had not in time"));
}

#[test]
fn exit_codes_lead_to_the_right_retry() {
    let end = TaskEnd::code;
    let signal = |signal| TaskEnd {
        code: None,
        signal: Some(signal),
        told: false,
    };
    for over in [end(1), end(2), end(3), signal(11), signal(6), end(17)] {
        let mut budget = Budget::default();
        assert_eq!(verdict(over, 3, &mut budget), Verdict::Over, "{over}");
        assert_eq!(budget, Budget::default());
    }
    for lost in [end(75), signal(9), signal(15)] {
        let mut budget = Budget::default();
        let all: Vec<_> = (0..5).map(|_| verdict(lost, 3, &mut budget)).collect();
        let again = |seconds| Verdict::Again(Duration::from_secs(seconds));
        assert_eq!(
            all,
            [again(0), again(1), again(2), Verdict::Over, Verdict::Over]
        );
    }
    let mut budget = Budget {
        losses: 3,
        preemptions: 0,
    };
    let waits = [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60];
    for seconds in waits.into_iter().chain([60; 87]) {
        assert_eq!(
            verdict(end(143), 3, &mut budget),
            Verdict::Again(Duration::from_secs(seconds))
        );
    }
    assert_eq!(verdict(end(143), 3, &mut budget), Verdict::Over);
    assert_eq!(verdict(end(75), 0, &mut Budget::default()), Verdict::Over);
}

#[test]
fn jobs_of_one_name_and_millisecond_have_other_processes() {
    use crate::executor::run_id;
    let life = life();
    let folders = ["/a/jobs/demo", "/b/jobs/demo"].map(Path::new);
    let [a, b] = folders.map(|folder| run_id(folder, &life, None));
    assert_ne!(a, b);
    assert_eq!(a, run_id(folders[0], &life, None));
    assert_eq!(format!("{a}.7"), run_id(folders[0], &life, Some(7)));
}

#[test]
fn nothing_ends_before_it_began_whatever_the_clock_says() {
    let mut life = Life::new(5, submitted(Path::new("/"), json!({}), json!({})));
    for (at, event) in [
        (3, Event::Prepared),
        (9, Event::Running),
        (4, Event::Succeeded),
    ] {
        life.apply(at, event).unwrap();
    }
    assert_eq!((life.started, life.ended), (Some(9), Some(9)));
}
