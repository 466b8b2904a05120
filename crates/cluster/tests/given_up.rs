//! A worker that is not started again is not waited for, whatever is heard first: that it was given up, or that its connection ended.

use std::net::SocketAddr;
use std::time::Duration;

use phalanx_cluster::coordination::{
    Action, Coordination, Event, Hello, Recovery, Refusal, Reply, Request, Settings,
};

/// The service of three workers of which `least` are enough.
struct Service(Coordination, Duration);

impl Service {
    /// One that workers 0 to 2 have joined, on connections 1 to 3.
    fn joined(least: usize) -> Self {
        let mut service = Self(Coordination::new(settings(least)), Duration::ZERO);
        let last = (0..3).map(|worker| service.hello(worker, 0)).last();
        assert_eq!(welcomed(&last.unwrap()), [[0, 1, 2]; 3]);
        service
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        self.1 += Duration::from_millis(1);
        self.0.on(self.1, event)
    }

    fn connection(worker: usize, last: u64) -> u64 {
        10 * last + worker as u64 + 1
    }

    /// A worker comes, a member of this generation before.
    fn hello(&mut self, worker: usize, last: u64) -> Vec<Action> {
        self.hello_of("v", 3, worker, last)
    }

    /// One of this version comes, which counts this number of workers.
    fn hello_of(&mut self, version: &str, workers: usize, worker: usize, last: u64) -> Vec<Action> {
        self.on(Event::Message {
            connection: Self::connection(worker, last),
            from: None,
            request: Request::Hello(hello(version, workers, worker, last)),
            bytes: Vec::new(),
        })
    }

    /// What a worker says that was of this generation before.
    fn say(&mut self, worker: usize, last: u64, request: Request) -> Vec<Action> {
        self.on(Event::Message {
            connection: Self::connection(worker, last),
            from: None,
            request,
            bytes: Vec::new(),
        })
    }

    fn give_up(&mut self, worker: usize) -> Vec<Action> {
        self.on(Event::Gone { worker })
    }

    fn close(&mut self, worker: usize) -> Vec<Action> {
        self.on(Event::Closed {
            connection: Self::connection(worker, 0),
            why: "its connection was closed".into(),
        })
    }
}

fn settings(least: usize) -> Settings {
    Settings {
        workers: 3,
        job: "j".into(),
        version: String::new(),
        generation: 1,
        lease: Duration::from_secs(10),
        join_within: None,
        recovery: Some(Recovery {
            within: Duration::from_secs(100),
            least,
        }),
    }
}

fn hello(version: &str, workers: usize, worker: usize, last: u64) -> Hello {
    Hello {
        job: "j".into(),
        version: version.into(),
        worker,
        workers,
        incarnation: worker as u64,
        nonce: 0,
        data_address: SocketAddr::from(([127, 0, 0, 1], 1)),
        generation: last,
        progress: None,
        within_ms: 100_000,
        group: 0,
    }
}

/// The workers of a generation as each of them is told.
fn welcomed(actions: &[Action]) -> Vec<Vec<usize>> {
    let seats = |action: &Action| match &action.reply {
        Reply::Welcome { seats, .. } => Some(seats.iter().map(|seat| seat.worker).collect()),
        _ => None,
    };
    actions.iter().filter_map(seats).collect()
}

#[test]
fn two_go_on_whatever_is_heard_first() {
    for is_given_up_first in [true, false] {
        let mut service = Service::joined(2);
        if is_given_up_first {
            assert!(service.give_up(1).is_empty());
            service.close(1);
        } else {
            service.close(1);
            service.give_up(1);
        }
        assert_eq!(welcomed(&service.hello(0, 1)), Vec::<Vec<usize>>::new());
        assert_eq!(welcomed(&service.hello(2, 1)), [[0, 2]; 2]);
    }
}

#[test]
fn one_goes_on_when_two_were_given_up_at_once() {
    let mut service = Service::joined(1);
    service.give_up(1);
    service.give_up(2);
    service.close(2);
    service.close(1);
    assert_eq!(welcomed(&service.hello(0, 1)), [[0]]);
}

#[test]
fn too_few_hear_who_is_gone() {
    let mut service = Service::joined(3);
    service.give_up(1);
    service.close(1);
    service.hello(0, 1);
    service.hello(2, 1);
    let failure = service.0.failure().unwrap();
    assert_eq!((failure.worker, failure.next), (1, None));
    assert!(failure.reason.contains("not started again"), "{failure}");
}

/// Before all have come, too.
#[test]
fn a_worker_that_is_given_up_while_others_join_is_not_waited_for() {
    let mut service = Service::joined(2);
    service.close(0);
    service.hello(1, 1);
    service.hello(2, 1);
    assert_eq!(welcomed(&service.give_up(0)), [[1, 2]; 2]);
    // The second dies among those who join.
    let mut service = Service::joined(1);
    service.close(0);
    service.hello(1, 1);
    service.hello(2, 1);
    service.give_up(2);
    let closed = Event::Closed {
        connection: Service::connection(2, 1),
        why: "its connection was closed".into(),
    };
    service.on(closed);
    assert_eq!(welcomed(&service.give_up(0)), [[1]]);
}

/// A program may do what takes long before it joins: the time for joining begins with the first that comes, and is what that one waits.
#[test]
fn the_time_for_joining_begins_with_the_first_worker() {
    let mut service = Service(Coordination::new(settings(3)), Duration::from_secs(1000));
    assert!(service.on(Event::Tick).is_empty());
    service.hello(0, 0);
    service.1 += Duration::from_secs(50);
    service.hello(1, 0);
    service.1 += Duration::from_secs(49);
    assert_eq!(welcomed(&service.hello(2, 0)), [[0, 1, 2]; 3]);

    let mut service = Service(Coordination::new(settings(3)), Duration::from_secs(1000));
    service.hello(0, 0);
    service.1 += Duration::from_secs(100);
    service.on(Event::Tick);
    let failure = service.0.failure().unwrap();
    assert_eq!(failure.reason, "did not join within 100 s");
}

/// How a comer is refused; the others are told nothing.
fn refused(actions: &[Action]) -> &str {
    match actions {
        [
            Action {
                reply: Reply::Refused(Refusal::Differs { how }),
                ..
            },
        ] => how,
        other => panic!("{other:?}"),
    }
}

/// What a comer has for the number of its last generation, which makes its connection another one.
const COMER: u64 = 9;

/// A replacement of another version or another cluster ends alone, whether the others train without it or wait for one.
#[test]
fn others_go_on_without_one_that_differs() {
    let mut service = Service::joined(2);
    service.close(1);
    service.hello(0, 1);
    // They meet.
    let how = service.hello_of("w", 3, 1, COMER);
    assert!(refused(&how).contains("version w, the others have v"));
    let how = service.hello_of("v", 2, 1, COMER);
    assert!(refused(&how).contains("counts 2 workers"));
    service.give_up(1);
    assert_eq!(welcomed(&service.hello(2, 1)), [[0, 2]; 2]);
    // They train, for longer than the lease.
    let how = service.hello_of("w", 3, 1, COMER);
    assert!(refused(&how).contains("version w, the others have v"));
    let how = service.hello_of("v", 4, 1, COMER);
    assert!(refused(&how).contains("counts 4 workers"));
    assert_eq!((service.0.failure(), service.0.generation()), (None, 2));
    let news = service.0.take_news();
    assert!(news.iter().any(|line| line.contains("has version w")));
}

/// A comer ends a generation, so it is let in only when all members go on after that.
#[test]
fn one_that_comes_waits_until_all_admit_it() {
    let mut service = Service::joined(2);
    service.close(1);
    service.give_up(1);
    service.hello(0, 1);
    service.hello(2, 1);
    let later = |service: &mut Service| {
        service.1 += Duration::from_secs(60);
        let one = service.say(0, 1, Request::Heartbeat);
        [one, service.say(2, 1, Request::Heartbeat)].concat()
    };
    // Nobody trains.
    let heard = service.hello(1, COMER);
    let waits = |action: &Action| action.reply == Reply::Lobby;
    assert!(heard.iter().all(waits) && !heard.is_empty(), "{heard:?}");
    assert!(later(&mut service).iter().any(waits));
    // One trains, then the other one alone.
    let admit = |id, comers| Request::Admit { id, comers };
    service.say(0, 1, admit(1, true));
    service.say(0, 1, admit(2, false));
    service.say(2, 1, admit(1, true));
    later(&mut service);
    assert_eq!(service.0.generation(), 2);
    // Both do.
    let ended = service.say(0, 1, admit(3, true));
    let comes = |action: &Action| match &action.reply {
        Reply::Failed(failure) => failure.worker == 1 && failure.next == Some(3),
        _ => false,
    };
    assert_eq!(ended.iter().filter(|action| comes(action)).count(), 2);
    service.hello(0, 2);
    assert_eq!(welcomed(&service.hello(2, 2)), [[0, 1, 2]; 3]);
}

/// Who is of another job says nothing of this one's version.
#[test]
fn the_version_is_what_the_first_member_has() {
    let mut service = Service(Coordination::new(settings(1)), Duration::ZERO);
    let stranger = Hello {
        job: "another".into(),
        ..hello("w", 3, 0, 0)
    };
    service.on(Event::Message {
        connection: 99,
        from: None,
        request: Request::Hello(stranger),
        bytes: Vec::new(),
    });
    let last = (0..3).map(|worker| service.hello(worker, 0)).last();
    assert_eq!(welcomed(&last.unwrap()), [[0, 1, 2]; 3]);
}
