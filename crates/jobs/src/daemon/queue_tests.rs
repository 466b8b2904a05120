//! Tests of the queue.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use phalanx_testkit::Scratch;
use serde_json::{Value as Json, json};

use super::super::routes::create;
use super::*;

fn shared(scratch: &Scratch) -> Arc<Shared> {
    Arc::new(Shared::of(Store::open(&**scratch).unwrap()))
}

/// The status of the answer to a submission.
async fn submit(shared: &Arc<Shared>, name: &str) -> u16 {
    submit_with(shared, name, json!({})).await
}

/// The same with keys of ours.
async fn submit_with(shared: &Arc<Shared>, name: &str, ours: Json) -> u16 {
    let body = json!({"jobId": name, "trainingInput": {"args": ["true"]}, "phalanx": ours});
    let body = Bytes::from(body.to_string());
    let answer = create(State(Arc::clone(shared)), Path("p".to_owned()), body).await;
    answer.into_response().status().as_u16()
}

#[tokio::test]
async fn the_file_of_a_job_that_waits_is_read_once() {
    let scratch = Scratch::temporary("jobs-queue");
    let shared = shared(&scratch);
    for name in ["first", "second"] {
        assert_eq!(submit(&shared, name).await, 200);
    }
    let order = || in_order(&shared, &shared.jobs());
    assert_eq!(
        order(),
        ["first", "second"].map(|name| name.parse().unwrap())
    );
    // What is remembered is what counts.
    let urgent = Terms {
        priority: 9,
        max_wait: None,
        waited: Age::since(0),
    };
    let second = "second".parse().unwrap();
    shared.terms.lock().unwrap().insert(second, urgent);
    assert_eq!(
        order(),
        ["second", "first"].map(|name| name.parse().unwrap())
    );
}

#[tokio::test]
async fn a_job_that_could_not_be_written_is_started_when_it_can() {
    let scratch = Scratch::temporary("jobs-unwritten");
    let shared = shared(&scratch);
    assert_eq!(submit(&shared, "demo").await, 200);
    let name = "demo".parse().unwrap();
    let log = shared.store.folder(&name).join("events.log");
    let aside = log.with_file_name("aside");
    let mut scheduler = Scheduler::of(&shared, Machine::this(None, None), own_program, 0);
    // In the place of a disk that is full: a folder that cannot be written as a file.
    fs::rename(&log, &aside).unwrap();
    fs::create_dir(&log).unwrap();
    assert!(!scheduler.admit());
    fs::remove_dir(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    // Not at once, which would read all files of the queue again and again.
    assert!(!scheduler.admit());
    thread::sleep(WRITE_AGAIN);
    assert!(scheduler.admit());
    assert_ne!(shared.jobs()[&name].life.state.name(), "QUEUED");
    for child in scheduler.supervisors.values_mut() {
        let _ = child.wait();
    }
}

#[tokio::test]
async fn gpus_are_held_until_the_end_of_a_job_whatever_becomes_of_the_daemon() {
    let scratch = Scratch::temporary("jobs-gpus");
    let shared = shared(&scratch);
    let named = |name: &str| name.parse::<JobName>().unwrap();
    for (name, ours) in [
        ("first", json!({"gpus": 2})),
        ("second", json!({"gpus": 2, "cpus": 2})),
        ("third", json!({"gpus": 1})),
        ("many", json!({"gpus": 1, "workers": 4})),
    ] {
        assert_eq!(submit_with(&shared, name, ours).await, 200);
    }
    let state = |name: &str| shared.jobs()[&named(name)].life.state.name();
    let waits = |name: &str| {
        let life = shared.jobs()[&named(name)].life.clone();
        shared.shown(&life, None)["phalanx"]["waitsFor"].clone()
    };
    let held = |name: &str| {
        Share::read(&shared.store.folder(&named(name)))
            .unwrap()
            .gpus
            .unwrap()
    };
    // Each look is another daemon's: what it knows it has read.
    let look = || {
        let machine = Machine::this(Some(8), Some("5,3,4"));
        let missing = || Ok(PathBuf::from("/none"));
        Scheduler::of(&shared, machine, missing, 0).admit();
    };
    look();
    look();
    assert_eq!(held("first").names, ["5", "3"]);
    assert!(held("first").are_own);
    // The second is first in the queue: what is enough for the third is not given to it.
    assert_eq!([state("second"), state("third")], ["QUEUED"; 2]);
    assert_eq!(waits("second"), "2 GPUs (free: 1 of 3)");
    assert_eq!(waits("third"), Json::Null);
    assert_eq!(state("many"), "FAILED");
    let failed = Event::Failed { why: String::new() };
    let end = |store: &Store, job: &mut Followed| store.append(job, failed);
    let first = shared
        .jobs()
        .get_mut(&named("first"))
        .map(|job| end(&shared.store, job));
    first.unwrap().unwrap();
    look();
    assert_eq!(held("second").names, ["5", "3"]);
    assert_eq!(held("third").names, ["4"]);
    assert_eq!(waits("second"), Json::Null);
}

#[tokio::test]
async fn gpus_of_a_job_whose_share_cannot_be_read_are_not_free() {
    let scratch = Scratch::temporary("jobs-unread");
    let shared = shared(&scratch);
    let [first, second] = ["first", "second"].map(|name| name.parse::<JobName>().unwrap());
    let look = || {
        let machine = Machine::this(Some(8), Some("5,3"));
        let missing = || Ok(PathBuf::from("/none"));
        let mut scheduler = Scheduler::of(&shared, machine, missing, 0);
        scheduler.admit();
        scheduler.again.is_some()
    };
    let one = || json!({"gpus": 1});
    assert_eq!(submit_with(&shared, "first", one()).await, 200);
    assert!(!look());
    let share = shared.store.folder(&first).join("share.json");
    let text = fs::read(&share).unwrap();
    fs::write(&share, "").unwrap();
    assert_eq!(submit_with(&shared, "second", one()).await, 200);
    // It is looked at again, since nothing else may change.
    assert!(look());
    let life = shared.jobs()[&second].life.clone();
    let waits = shared.shown(&life, None)["phalanx"]["waitsFor"].clone();
    let said = "1 GPUs (free: 0 of 2); the end of a job";
    assert!(waits.as_str().unwrap().starts_with(said), "{waits}");
    fs::write(&share, text).unwrap();
    assert!(!look());
    let given = Share::read(&shared.store.folder(&second)).unwrap().gpus;
    assert_eq!(given.unwrap().names, ["3"]);
}

#[tokio::test]
async fn a_job_goes_on_while_its_supervisor_cannot_be_started_a_few_times() {
    let scratch = Scratch::temporary("jobs-unsupervised");
    let shared = shared(&scratch);
    assert_eq!(submit(&shared, "demo").await, 200);
    let name: JobName = "demo".parse().unwrap();
    let missing = || Ok(PathBuf::from("/none"));
    let mut scheduler = Scheduler::of(&shared, Machine::this(None, None), missing, 0);
    let life = || shared.jobs()[&name].life.clone();
    for count in 1..=MOST_SUPERVISORS {
        scheduler.look();
        // Not once more before it is time.
        scheduler.look();
        assert_eq!(scheduler.tries[&name].count, count);
        assert_eq!(life().state.name(), "PREPARING");
        scheduler.tries.get_mut(&name).unwrap().next = Instant::now();
    }
    scheduler.look();
    let life = life();
    assert_eq!(life.state.name(), "FAILED");
    let why = life.error.unwrap();
    assert!(why.contains("cannot be started: No such file"), "{why}");
}

#[tokio::test]
async fn a_daemon_that_ends_takes_no_job_and_one_with_a_job_does_not_end() {
    let scratch = Scratch::temporary("jobs-ending");
    let shared = shared(&scratch);
    end(&shared);
    assert!(shared.is_ending());
    assert_eq!(submit(&shared, "late").await, 503);
    assert!(shared.store.names().unwrap().is_empty());
    shared.stop.store(false, Ordering::Relaxed);
    assert_eq!(submit(&shared, "early").await, 200);
    end(&shared);
    assert!(!shared.is_ending());
}
