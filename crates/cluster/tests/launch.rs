//! The supervisor with small shell programs as workers.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::{Console, How, Launch, LaunchError, Outcome, Show, Stop};

/// Nothing in these tests takes so long unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// In a worker's script: where the logs of its launch are, as [`Run::new`] has it.
const LOGS: &str = "logs=${TMPDIR:-/tmp}/$PHALANX_JOB_ID";

/// A buffer that several own.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

struct Run {
    launch: Launch,
    out: Shared,
    err: Shared,
    stop: Stop,
}

impl Run {
    /// `workers` shells that run a script, with logs in a folder of their own.
    fn new(workers: usize, script: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let job = format!("test-{}-{number}", std::process::id());
        let logs = std::env::temp_dir().join(&job);
        let program = vec!["/bin/sh".into(), "-c".into(), script.into()];
        let mut launch = Launch::new(program, NonZeroUsize::new(workers).unwrap(), job, logs);
        launch.grace = Duration::from_millis(200);
        launch.stop_grace = Duration::from_secs(5);
        Self {
            launch,
            out: Shared::default(),
            err: Shared::default(),
            stop: Stop::default(),
        }
    }

    fn outcome(&self) -> Outcome {
        self.try_run().unwrap()
    }

    fn try_run(&self) -> Result<Outcome, LaunchError> {
        let console = Console {
            out: Box::new(self.out.clone()),
            err: Box::new(self.err.clone()),
        };
        let start = Instant::now();
        let outcome = self.launch.run(&self.stop, console, None);
        assert!(start.elapsed() < LONG, "it took {:?}", start.elapsed());
        outcome
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.launch.logs.join(name)).unwrap()
    }

    /// The processes that have a variable of this job.
    fn processes(&self) -> Vec<PathBuf> {
        let wanted = format!("PHALANX_JOB_ID={}", self.launch.job);
        let all = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .map(|folder| folder.path());
        let has_it = |path: &PathBuf| {
            let variables = std::fs::read(path.join("environ")).unwrap_or_default();
            variables
                .split(|byte| *byte == 0)
                .any(|one| one == wanted.as_bytes())
        };
        all.filter(has_it).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.launch.logs);
    }
}

#[test]
fn every_worker_gets_its_variables_and_a_log() {
    let run = Run::new(
        3,
        "echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT; echo $TF_CONFIG >&2",
    );
    let outcome = run.outcome();
    assert_eq!(outcome.exit_code(), 0);
    let mut addresses = BTreeSet::new();
    for rank in 0..3 {
        let out = run.log(&format!("worker-{rank}.out"));
        let address = out
            .strip_prefix(&format!("{rank}/3 "))
            .unwrap()
            .trim()
            .to_owned();
        let config = run.log(&format!("worker-{rank}.err"));
        assert!(
            config.contains(&format!("\"worker\":[\"{address}\"")),
            "{config}"
        );
        assert!(config.contains(&format!("\"index\":{rank}")), "{config}");
        addresses.insert(address);
    }
    assert_eq!(addresses.len(), 1, "{addresses:?}");
}

#[test]
fn the_console_shows_what_was_asked_for() {
    let script = "echo out $RANK; echo err $RANK >&2";
    let shown = |show: Show| {
        let mut run = Run::new(3, script);
        run.launch.show = show;
        run.outcome();
        (run.out.lines(), run.err.lines())
    };
    let (out, err) = shown(Show::Chief);
    assert_eq!(out, ["out 0"]);
    assert_eq!(err, ["[worker1] err 1", "[worker2] err 2", "err 0"]);
    let (out, err) = shown(Show::Ranks(vec![0, 2]));
    assert_eq!(out, ["[worker0] out 0", "[worker2] out 2"]);
    assert_eq!(err, ["[worker0] err 0", "[worker2] err 2"]);
    let (out, _) = shown(Show::All);
    assert_eq!(
        out,
        ["[worker0] out 0", "[worker1] out 1", "[worker2] out 2"]
    );
}

#[test]
fn the_first_failure_ends_all_and_is_summarised() {
    let script = "if [ $RANK = 1 ]; then seq 1 30; echo broken >&2; exit 3; fi; sleep 100";
    let run = Run::new(3, script);
    let outcome = run.outcome();
    let first = outcome.first_failure().unwrap();
    assert_eq!((first.rank, first.how), (1, How::Code(3)));
    assert_eq!(outcome.exit_code(), 3);
    assert_eq!(outcome.last_lines.len(), 20);
    assert!(
        outcome.last_lines.contains(&"broken".to_owned())
            || outcome.last_lines.contains(&"30".to_owned())
    );
    assert_eq!(outcome.log, Some(run.launch.logs.join("worker-1.err")));
    let others = outcome.ended.iter().filter(|ended| ended.rank != 1);
    assert!(
        others.clone().count() == 2
            && others
                .into_iter()
                .all(|ended| ended.told && ended.how == How::Signal(15))
    );
    assert!(run.processes().is_empty());
}

#[test]
fn others_may_end_by_themselves_first_and_those_who_do_not_hear_are_killed() {
    let mut run = Run::new(2, "[ $RANK = 1 ] && kill -9 $$; sleep 0.1; exit 75");
    run.launch.grace = LONG;
    let outcome = run.outcome();
    assert_eq!(outcome.first_failure().unwrap().how, How::Signal(9));
    assert!(outcome.ended.iter().all(|ended| !ended.told));
    assert_eq!(outcome.exit_code(), 75);

    // Nobody fails before the other one is deaf.
    let script = format!(
        "{LOGS}; trap '' TERM; echo deaf
[ $RANK = 0 ] || {{ until grep -q deaf $logs/worker-0.out; do sleep 0.05; done; exit 1; }}
while :; do sleep 0.1; done"
    );
    let mut deaf = Run::new(2, &script);
    deaf.launch.stop_grace = Duration::from_millis(200);
    let outcome = deaf.outcome();
    assert_eq!(outcome.ended[1].how, How::Signal(9));
    assert_eq!((outcome.exit_code(), deaf.processes().len()), (1, 0));
}

#[test]
fn nobody_waits_to_hear_of_a_mistake_of_the_user() {
    let mut run = Run::new(2, "[ $RANK = 1 ] && exit 2; exec sleep 600");
    run.launch.grace = LONG;
    let outcome = run.outcome();
    assert_eq!(outcome.exit_code(), 2);
    assert!(
        outcome
            .ended
            .iter()
            .any(|ended| ended.rank == 0 && ended.told)
    );
}

#[test]
fn a_stopped_worker_is_ended_too() {
    let mut run = Run::new(
        2,
        "[ $RANK = 1 ] && sleep 0.1 && exit 1; kill -STOP $$; sleep 100",
    );
    run.launch.stop_grace = LONG;
    let outcome = run.outcome();
    assert_eq!(outcome.first_failure().unwrap().rank, 1);
    assert_eq!(outcome.ended[1].how, How::Signal(15));
}

#[test]
fn what_workers_leave_behind_ends_with_them() {
    let run = Run::new(2, "sleep 100 & (sleep 100; true) & exit 0");
    assert_eq!(run.outcome().exit_code(), 0);
    let until = Instant::now() + LONG;
    // Killed, they are gone as soon as they have been collected.
    while !run.processes().is_empty() {
        assert!(Instant::now() < until, "{:?}", run.processes());
        thread::sleep(Duration::from_millis(5));
    }
}

/// The end of two shells that run a script, which get these signals one after the other once both are ready, and the last again and
/// again until the end where `insists`.
fn stopped(script: &str, signals: &[fn(&Stop) -> &AtomicBool], insists: bool) -> (Outcome, String) {
    let mut run = Run::new(2, script);
    run.launch.stop_grace = LONG;
    let outcome = thread::scope(|scope| {
        let running = scope.spawn(|| run.outcome());
        let ready = |rank: usize| run.launch.logs.join(format!("worker-{rank}.out"));
        for rank in 0..2 {
            while !std::fs::read_to_string(ready(rank)).is_ok_and(|text| text.contains("ready")) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        let send = |signal: &fn(&Stop) -> &AtomicBool| {
            signal(&run.stop).store(true, Ordering::Relaxed);
            while signal(&run.stop).load(Ordering::Relaxed) && !running.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
        };
        signals.iter().for_each(send);
        while insists && !running.is_finished() {
            signals.last().into_iter().for_each(send);
        }
        running.join().unwrap()
    });
    (outcome, run.log("worker-1.out"))
}

#[test]
fn signals_are_passed_on_and_another_ends_at_once() {
    let script = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done";
    let (outcome, log) = stopped(script, &[|stop| &stop.terminate], false);
    assert_eq!(outcome.exit_code(), 143);
    assert!(
        outcome.first_failure().is_none() && log.contains("saved"),
        "{log}"
    );

    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let (outcome, _) = stopped(deaf, &[|stop| &stop.terminate], true);
    assert!(
        outcome
            .ended
            .iter()
            .all(|ended| ended.how == How::Signal(9))
    );
    assert_eq!(outcome.exit_code(), 143);
}

/// A terminal that is closed says so twice, and some schedulers send several signals at once.
#[test]
fn signals_that_come_with_the_first_do_not_end_what_workers_save() {
    let script = "trap 'trap \"\" HUP TERM; sleep 0.2; echo saved; exit 0' HUP TERM; echo ready; while :; do sleep 0.05; done";
    type Signal = fn(&Stop) -> &AtomicBool;
    let all: [[Signal; 2]; 3] = [
        [|stop| &stop.hangup, |stop| &stop.hangup],
        [|stop| &stop.terminate, |stop| &stop.hangup],
        [|stop| &stop.terminate, |stop| &stop.terminate],
    ];
    for signals in all {
        let (outcome, log) = stopped(script, &signals, false);
        assert_eq!(outcome.exit_code(), 0, "{outcome:?}");
        assert!(log.contains("saved"), "{log}");
    }
}

#[test]
fn a_program_that_does_not_exist_is_an_error() {
    let mut run = Run::new(2, "");
    run.launch.program = vec!["/no/such/program".into()];
    let error = run.try_run().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot start /no/such/program: No such file"),
        "{error}"
    );
    run.launch.program.clear();
    assert!(matches!(run.try_run(), Err(LaunchError::NoProgram)));
}

#[test]
fn workers_have_processors_of_their_own() {
    let processors = thread::available_parallelism().unwrap().get();
    if processors < 2 {
        return;
    }
    let run = Run::new(2, "grep Cpus_allowed_list /proc/self/status");
    run.outcome();
    let (zero, one) = (run.log("worker-0.out"), run.log("worker-1.out"));
    assert!(
        zero != one && zero.starts_with("Cpus_allowed_list"),
        "{zero} {one}"
    );
}

/// Many launches at once, each of whose workers listens at its port of TF_CONFIG, with the usual ports taken.
#[test]
fn launches_at_once_have_ports_of_their_own() {
    let ports = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let run = Run::new(3, "echo $TF_CONFIG; sleep 0.2");
                assert_eq!(run.outcome().exit_code(), 0);
                let config = run.log("worker-0.out");
                let numbers = config.split("127.0.0.1:").skip(1);
                let number = |text: &str| text.split('"').next().unwrap().to_owned();
                ports.lock().unwrap().extend(numbers.map(number));
            });
        }
    });
    let ports = ports.into_inner().unwrap();
    assert_eq!(ports.len(), 36);
    assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 36, "{ports:?}");
}

#[test]
fn a_worker_that_may_try_again_is_started_again_and_no_other() {
    let again = |script: &str, most: u32| {
        let mut run = Run::new(2, script);
        run.launch.max_restarts = most;
        let outcome = run.outcome();
        (outcome, run)
    };
    let (outcome, run) = again(
        "echo $RANK $PHALANX_RESTART_COUNT; [ $RANK = 0 ] || [ $PHALANX_RESTART_COUNT = 2 ] || exit 75",
        2,
    );
    assert_eq!(outcome.exit_code(), 0, "{outcome:?}");
    assert_eq!(outcome.ended.len(), 4);
    assert_eq!(run.log("worker-1.out"), "1 0\n1 1\n1 2\n");
    let told = run.err.lines().join("\n");
    assert!(
        told.contains("worker:1 ended with exit code 75 and is started again (2 of 2)"),
        "{told}"
    );
    // Killed from outside is as good as 75; its own failure is none.
    let (outcome, run) = again(
        "[ $RANK = 0 ] || [ $PHALANX_RESTART_COUNT = 1 ] || kill -9 $$",
        1,
    );
    assert_eq!(
        (outcome.exit_code(), outcome.ended.len()),
        (0, 3),
        "{:?}",
        run.err.lines()
    );
    let (outcome, _) = again("[ $RANK = 0 ] || exit 3", 5);
    assert_eq!((outcome.exit_code(), outcome.ended.len()), (3, 2));
    let (outcome, _) = again("[ $RANK = 0 ] || exit 75", 3);
    assert_eq!((outcome.exit_code(), outcome.ended.len()), (75, 5));
}

#[test]
fn the_others_go_on_without_a_worker_where_they_are_enough() {
    let lost = |least: usize| {
        let mut run = Run::new(3, "[ $RANK = 1 ] && exit 75; sleep 0.5; echo done");
        run.launch.least_workers = NonZeroUsize::new(least).unwrap();
        run.outcome().exit_code()
    };
    assert_eq!(lost(2), 0);
    assert_eq!(lost(3), 75);
    // Who has ended well by then has gone on to the end.
    let mut run = Run::new(2, "[ $RANK = 0 ] || { sleep 0.5; exit 75; }");
    run.launch.least_workers = NonZeroUsize::new(1).unwrap();
    assert_eq!(run.outcome().exit_code(), 0);
}

#[test]
fn the_output_of_the_first_worker_that_is_left_is_shown() {
    // Once somebody has looked at how the first one has ended.
    let script = format!(
        "{LOGS}; [ $RANK = 0 ] && {{ echo $$ >$logs/new; mv $logs/new $logs/first; exit 75; }}
until [ -e $logs/first ]; do sleep 0.05; done
while [ -e /proc/$(cat $logs/first) ]; do sleep 0.05; done; sleep 0.5; echo from $RANK"
    );
    let mut run = Run::new(3, &script);
    run.launch.least_workers = NonZeroUsize::MIN;
    assert_eq!(run.outcome().exit_code(), 0);
    assert_eq!(run.out.lines(), ["from 1"]);
}

#[test]
fn an_evaluator_that_is_lost_costs_the_training_nothing() {
    let ended = |how: &str| {
        let script = format!("case \"$TF_CONFIG\" in *'\"type\":\"evaluator\"'*) {how};; esac");
        let mut run = Run::new(1, &script);
        run.launch.evaluator = true;
        let code = run.outcome().exit_code();
        (code, run.err.lines().join("\n"))
    };
    let (code, told) = ended("kill -9 $$");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("the training goes on without it"), "{told}");
    assert_eq!(ended("exit 3").0, 3);
}

#[test]
fn the_state_of_servers_is_of_one_launch_and_gone_after_it() {
    let server = "mkdir -p $PHALANX_PS_STATE; echo $PHALANX_PS_STATE $(ls $PHALANX_PS_STATE); echo >$PHALANX_PS_STATE/kept; exit $((75 - 75 * PHALANX_RESTART_COUNT))";
    let script = format!("case $TF_CONFIG in *ps*index*) [ \"$RANK\" ] || {{ {server}; }};; esac");
    let mut run = Run::new(1, &script);
    (run.launch.servers, run.launch.max_restarts) = (1, 1);
    assert_eq!(run.outcome().exit_code(), 0, "{:?}", run.err.lines());
    let state = run.launch.logs.join(format!("state-{}", run.launch.job));
    let shown = state.display();
    assert_eq!(run.log("ps-0.out"), format!("{shown}\n{shown} kept\n"));
    assert!(!state.exists());
}

#[test]
fn a_port_that_was_not_asked_for_is_not_to_be_chosen_otherwise() {
    let told = |port| {
        let source = io::Error::other("none is left");
        LaunchError::Port { port, source }.to_string()
    };
    assert_eq!(
        told(0),
        "cannot take a free port for each worker: none is left; start fewer workers, or raise the limit of files (ulimit -n)"
    );
    assert!(told(4000).starts_with("cannot take port 4000: none is left; choose another"));
}
