//! Scheduled functions as state machines, driven by a seed: workers die with a function half done, or are taken for dead and go on;
//! the control comes back from its snapshot; messages come twice. PHALANX_SIMULATIONS sets how many seeds are tried (1,000 otherwise);
//! PHALANX_SEED tries one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use phalanx_ps::{Control, ControlSettings, Mode, Part, PushKey, Shards, Task, TaskEnd, Values};

const WORKERS: usize = 4;
const PUSHES: u64 = 3;

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound.max(1)
    }
}

/// How often each push was applied.
#[derive(Default)]
struct Counts(BTreeMap<u64, u64>);

impl Values for Counts {
    fn create(&mut self, _: &str, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn pull(&mut self, _: &str, _: &[u8]) -> Result<Arc<Vec<u8>>, String> {
        Ok(Arc::default())
    }

    fn mean(&mut self, _: &[(Part, &str, &[u8])]) -> Result<(String, Vec<u8>), String> {
        Err("nobody steps together here".into())
    }

    fn apply(&mut self, _: &str, gradient: &[u8], _: Option<&[f64]>) -> Result<(), String> {
        let push = gradient.try_into().map_err(|_| "8 bytes")?;
        *self.0.entry(u64::from_le_bytes(push)).or_insert(0) += 1;
        Ok(())
    }

    fn squares(&mut self, _: &str, _: &[u8]) -> Result<Vec<f64>, String> {
        Ok(Vec::new())
    }

    fn act(&mut self, _: &str, _: &[u8]) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }

    fn save(&mut self) -> Result<Vec<u8>, String> {
        Ok(Vec::new())
    }

    fn load(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// A process that runs a function, and how many pushes of it were made.
#[derive(Clone, Debug)]
struct Runs {
    worker: usize,
    incarnation: u64,
    task: Option<(Task, u64)>,
}

struct World {
    random: Random,
    control: Control,
    shards: Shards,
    values: Counts,
    processes: Vec<Runs>,
    /// Processes that were taken for dead and are not.
    ghosts: Vec<Runs>,
    scheduled: u64,
    ends: BTreeMap<u64, TaskEnd>,
    first_pushes: BTreeMap<u64, u64>,
    has_seen_failure: bool,
}

fn settings() -> ControlSettings {
    ControlSettings {
        workers: WORKERS,
        mode: Mode::Async,
        goes_on_without_chief: true,
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut shards = Shards::default();
        let mut values = Counts::default();
        shards.create("", &[], &mut values).unwrap();
        let process = |worker| Runs {
            worker,
            incarnation: 1,
            task: None,
        };
        let mut world = Self {
            random: Random(seed),
            control: Control::new(settings()),
            shards,
            values,
            processes: (1..WORKERS).map(process).collect(),
            ghosts: Vec::new(),
            scheduled: 0,
            ends: BTreeMap::new(),
            first_pushes: BTreeMap::new(),
            has_seen_failure: false,
        };
        world.greet();
        world.control.tasks_of_chief(0).unwrap().open();
        world
    }

    /// Everybody says hello.
    fn greet(&mut self) {
        let processes = self.processes.iter().map(|p| (p.worker, p.incarnation));
        for (worker, incarnation) in processes.chain([(0, 1)]) {
            let hello = self
                .control
                .hello(Duration::ZERO, worker, incarnation, &settings());
            hello.unwrap();
            self.shards.hello(worker, incarnation);
        }
    }

    fn schedule(&mut self) {
        // At times twice.
        for _ in 0..1 + u64::from(self.random.below(5) == 0) {
            let number = self.scheduled;
            let arguments = number.to_le_bytes().to_vec();
            self.control.schedule(0, number, "f", arguments).unwrap();
        }
        self.scheduled += 1;
    }

    /// The first worker hears of ends, and then says so.
    fn hear(&mut self) {
        let heard: Vec<(u64, TaskEnd)> = {
            let ends = self.control.tasks().ends();
            ends.map(|(number, end, result)| {
                let expected = match end {
                    TaskEnd::Done => number.to_le_bytes().to_vec(),
                    _ => Vec::new(),
                };
                assert_eq!(result, expected, "the result of task {number}");
                (number, end.clone())
            })
            .collect()
        };
        for (number, end) in &heard {
            self.has_seen_failure |= *end != TaskEnd::Done;
            // A control that came back may tell it again, and in the same words unless nobody had been told.
            let known = self.ends.entry(*number).or_insert_with(|| end.clone());
            assert_eq!(known, end, "task {number} ended twice");
        }
        let all: Vec<u64> = heard.iter().map(|(number, _)| *number).collect();
        let queue = self.control.tasks_of_chief(0).unwrap();
        queue.acknowledge(&all);
        // As it raises the error: once nothing is left that was scheduled before.
        if self.has_seen_failure && self.ends.len() as u64 == self.scheduled {
            queue.clear_failure();
            self.has_seen_failure = false;
        }
    }

    /// A process goes on by a little.
    fn step(&mut self, mut runs: Runs) -> Runs {
        let is_ghost = !self
            .processes
            .iter()
            .any(|p| p.incarnation == runs.incarnation && p.worker == runs.worker);
        let Some((task, pushed)) = runs.task.take() else {
            if !is_ghost && let Some((task, arguments)) = self.control.take(runs.worker) {
                assert_eq!(arguments, task.number.to_le_bytes());
                let first = self.first_pushes.entry(task.number);
                assert_eq!(*first.or_insert(task.first_push), task.first_push);
                runs.task = Some((task, 0));
            }
            return runs;
        };
        if pushed < PUSHES {
            let work = task.first_push + pushed;
            let key = PushKey {
                work,
                worker: runs.worker,
                incarnation: runs.incarnation,
                done_below: task.done_below,
            };
            for _ in 0..1 + u64::from(self.random.below(6) == 0) {
                let applied =
                    self.shards
                        .push(&key, "", &work.to_le_bytes(), None, &mut self.values);
                // What a process pushes whose place another has taken does not count.
                assert!(applied.is_ok() || is_ghost);
            }
            runs.task = Some((task, pushed + 1));
            return runs;
        }
        if !self
            .control
            .heard(Duration::ZERO, runs.worker, runs.incarnation)
        {
            // Another process has its place, and the server says so.
            assert!(is_ghost);
            return runs;
        }
        let fails = self.random.below(40) == 0;
        let result = match fails {
            true => Err("it throws".into()),
            false => Ok(task.number.to_le_bytes().to_vec()),
        };
        self.control.finish(runs.worker, task.number, result);
        runs
    }

    /// A process dies, or is taken for dead and goes on; another takes its place.
    fn lose(&mut self, index: usize) {
        let lost = self.processes[index].clone();
        (self.control).gone(Duration::ZERO, lost.worker, lost.incarnation);
        match self.random.below(3) {
            // It only did not answer for a while: nobody takes its place.
            0 => return,
            1 => self.ghosts.push(lost.clone()),
            _ => {}
        }
        self.processes[index] = Runs {
            incarnation: lost.incarnation + 1,
            task: None,
            ..lost
        };
        self.greet();
    }

    fn event(&mut self) {
        let workers = self.processes.len() as u64;
        match self.random.below(40) {
            0 => {
                let index = self.random.below(workers) as usize;
                self.lose(index);
            }
            1 => {
                // The control is started again; what processes run goes on.
                let kept = serde_json::to_string(&self.control).unwrap();
                self.control = serde_json::from_str(&kept).unwrap();
                self.greet();
            }
            2..6 if self.scheduled < 60 => self.schedule(),
            6..9 => self.hear(),
            9..12 if !self.ghosts.is_empty() => {
                let index = self.random.below(self.ghosts.len() as u64) as usize;
                let ghost = self.ghosts.swap_remove(index);
                let ghost = self.step(ghost);
                if ghost.task.is_some() {
                    self.ghosts.push(ghost);
                }
            }
            _ => {
                let index = self.random.below(workers) as usize;
                let runs = self.step(self.processes[index].clone());
                self.processes[index] = runs;
            }
        }
    }

    fn check(&self, seed: u64) {
        let twice = self.values.0.iter().find(|(_, count)| **count > 1);
        assert_eq!(twice, None, "seed {seed}: a push was applied twice");
        assert_eq!(
            self.ends.len() as u64,
            self.scheduled,
            "seed {seed}: {:?}",
            self.ends
        );
        for (number, end) in &self.ends {
            let Some(first) = self.first_pushes.get(number) else {
                assert_eq!(
                    *end,
                    TaskEnd::Cancelled,
                    "seed {seed}: nobody ran task {number}"
                );
                continue;
            };
            let applied = (0..PUSHES).filter(|push| self.values.0.contains_key(&(first + push)));
            let applied = applied.count() as u64;
            assert!(
                *end != TaskEnd::Done || applied == PUSHES,
                "seed {seed}: task {number} is done with {applied} pushes"
            );
        }
    }
}

fn simulate(seed: u64) -> usize {
    let mut world = World::new(seed);
    for _ in 0..1500 {
        world.event();
    }
    // Nobody dies any more: all that was scheduled ends.
    for round in 0.. {
        assert!(
            round < 1000,
            "seed {seed}: {:?} is never done",
            world.control.tasks()
        );
        for index in 0..world.processes.len() {
            let runs = world.step(world.processes[index].clone());
            world.processes[index] = runs;
        }
        world.hear();
        if world.ends.len() as u64 == world.scheduled {
            break;
        }
    }
    world.check(seed);
    let done = world.ends.values().filter(|end| **end == TaskEnd::Done);
    done.count()
}

#[test]
fn each_task_ends_once_and_each_push_is_applied_once() {
    if let Ok(seed) = std::env::var("PHALANX_SEED") {
        simulate(seed.parse().unwrap());
        return;
    }
    let seeds = std::env::var("PHALANX_SIMULATIONS");
    let seeds: u64 = seeds.map_or(1000, |seeds| seeds.parse().unwrap());
    let done: usize = (0..seeds).map(simulate).sum();
    // Most of the tasks were done; the others had failed, or were cancelled by one that had.
    assert!(done as u64 > 20 * seeds, "{done} of {seeds} seeds");
}
