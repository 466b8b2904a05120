use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::json;

use super::*;
use crate::lifecycle::State;
use crate::testing::Scratch;

fn job(name: &str) -> Submitted {
    Submitted {
        name: name.parse().unwrap(),
        project: "p".into(),
        training_input: json!({"args": ["a\nb"]}),
        phalanx: json!({}),
        labels: BTreeMap::new(),
        directory: PathBuf::from("/"),
        environment: BTreeMap::new(),
    }
}

/// A job that has succeeded after these events.
fn finished(store: &Store) -> Followed {
    let mut followed = store.create(job("demo")).unwrap();
    let started = Event::TaskStarted {
        task: "chief-0".into(),
        attempt: 1,
        place: "1".into(),
    };
    for event in [Event::Prepared, started, Event::Running, Event::Succeeded] {
        store.append(&mut followed, event).unwrap();
    }
    followed
}

#[test]
fn what_was_appended_is_read_by_others() {
    let scratch = Scratch::new("store-others");
    let store = Store::open(&scratch.0).unwrap();
    let mut one = store.create(job("demo")).unwrap();
    let mut other = store.load(&"demo".parse().unwrap()).unwrap();
    assert_eq!(one.life, other.life);
    store.append(&mut one, Event::Prepared).unwrap();
    assert!(store.refresh(&mut other).unwrap());
    assert!(!store.refresh(&mut other).unwrap());
    assert_eq!(other.life.state, State::Preparing);
    // An old view does not let an event happen twice.
    let mut old = store.load(&"demo".parse().unwrap()).unwrap();
    store.append(&mut one, Event::Running).unwrap();
    let error = store
        .append(&mut old, Event::Running)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is RUNNING, and cannot become RUNNING"),
        "{error}"
    );
    assert!(matches!(
        store.create(job("demo")),
        Err(StoreError::Exists(_))
    ));
    assert_eq!(store.names().unwrap(), ["demo".parse().unwrap()]);
    let none = store.load(&"none".parse().unwrap());
    assert!(matches!(none, Err(StoreError::NoJob(_))));
}

#[test]
fn a_log_cut_anywhere_is_a_state_that_was_and_goes_on() {
    let scratch = Scratch::new("store-cut");
    let store = Store::open(&scratch.0).unwrap();
    let path = store.folder(&"demo".parse().unwrap()).join(LOG);
    finished(&store);
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut seen = Vec::new();
    for cut in first..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let mut followed = store.load(&"demo".parse().unwrap()).unwrap();
        seen.push(followed.life.state);
        if !followed.life.state.is_final() {
            let why = "test".to_owned();
            store
                .append(&mut followed, Event::Cancelling { why })
                .unwrap();
            let again = store.load(&"demo".parse().unwrap()).unwrap();
            assert_eq!(again.life.state, State::Cancelling, "cut at {cut}");
        }
    }
    seen.dedup();
    assert_eq!(
        seen,
        [
            State::Queued,
            State::Preparing,
            State::Running,
            State::Succeeded
        ]
    );
}

#[test]
fn a_damaged_record_is_told_and_never_believed() {
    let scratch = Scratch::new("store-damage");
    let store = Store::open(&scratch.0).unwrap();
    let name: JobName = "demo".parse().unwrap();
    let path = store.folder(&name).join(LOG);
    let right = finished(&store).life;
    let whole = fs::read(&path).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
    let last = ends[ends.len() - 2] + 1;
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        match store.load(&name) {
            // Without the line's end before it, the last record is what a crash left.
            Ok(followed) if at + 1 >= last => assert_ne!(followed.life.state, State::Succeeded),
            Ok(followed) => panic!("byte {at}: {:?} of {right:?}", followed.life),
            Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
        }
    }
}

#[test]
fn one_process_runs_a_job() {
    let scratch = Scratch::new("store-lock");
    let store = Store::open(&scratch.0).unwrap();
    store.create(job("demo")).unwrap();
    let name = "demo".parse().unwrap();
    let held = store.supervise(&name).unwrap();
    assert!(held.is_some() && store.supervise(&name).unwrap().is_none());
    drop(held);
    assert!(store.supervise(&name).unwrap().is_some());
}

#[test]
fn what_a_clock_says_that_is_set_back_is_an_age_all_the_same() {
    // It was said to be tomorrow when this began.
    let age = Age::since(now() + 86_400_000);
    std::thread::sleep(Duration::from_millis(30));
    assert!(age.elapsed() >= Duration::from_millis(30));
    let hour = Duration::from_secs(3600);
    let before = Age::since(now() - 3_600_000).elapsed();
    assert!(before >= hour && before < hour + Duration::from_secs(60));
}
