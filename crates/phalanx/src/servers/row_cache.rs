//! Rows of tables that a worker has pulled and need not pull again yet.

use std::collections::{BTreeMap, HashMap};

use phalanx_ps::{Clock, Mode};

/// Which rows a worker keeps, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheOptions {
    /// The most rows, of all tables together.
    pub(crate) rows: usize,
    /// In asynchronous training: for how many batches of its own after the one that it was pulled for a worker uses a row.
    pub(crate) steps: u64,
}

impl CacheOptions {
    /// How old a row may be in a mode; `None` where each step pulls its rows.
    pub(super) const fn bound(self, mode: Mode) -> Option<u64> {
        let steps = match mode {
            Mode::BoundedStaleness { steps } => steps,
            Mode::Async => self.steps,
            Mode::Sync { .. } => 0,
        };
        match (self.rows, steps) {
            (0, _) | (_, 0) => None,
            (_, steps) => Some(steps),
        }
    }
}

/// Rows by their tables and numbers; the one that was used longest ago gives way.
#[derive(Default)]
pub(super) struct RowCache {
    rows: HashMap<(usize, u64), CachedRow>,
    /// The rows in the order in which they were used.
    used: BTreeMap<u64, (usize, u64)>,
    uses: u64,
    /// How far the worker was when it used it last.
    own: u64,
}

struct CachedRow {
    /// Every worker's pieces of work below this were in it.
    stamp: u64,
    use_number: u64,
    values: Vec<f32>,
}

/// What a row is stamped with that is pulled for a piece of work: all that every worker has done by then is in it, or, where workers
/// are not bound to each other, what this one has.
pub(super) const fn stamp(mode: Mode, clock: Clock) -> u64 {
    match mode {
        Mode::BoundedStaleness { .. } => clock.slowest,
        Mode::Async | Mode::Sync { .. } => clock.own,
    }
}

impl RowCache {
    /// The worker is this far. Where it was further before, what rows are stamped with says nothing any more, and they go.
    pub(super) fn go_on(&mut self, own: u64) {
        if own < self.own {
            self.clear();
        }
        self.own = own;
    }

    /// A row that lacks nothing of before `oldest`.
    pub(super) fn find(&mut self, key: (usize, u64), oldest: u64) -> Option<&[f32]> {
        let row = self.rows.get_mut(&key)?;
        if row.stamp < oldest {
            return None;
        }
        self.used.remove(&row.use_number);
        self.uses += 1;
        row.use_number = self.uses;
        self.used.insert(self.uses, key);
        Some(&row.values)
    }

    /// Keeps a row that was pulled; at most this number of rows stay.
    pub(super) fn keep(&mut self, key: (usize, u64), stamp: u64, values: &[f32], most: usize) {
        self.uses += 1;
        let row = CachedRow {
            stamp,
            use_number: self.uses,
            values: values.to_vec(),
        };
        self.used.insert(self.uses, key);
        if let Some(before) = self.rows.insert(key, row) {
            self.used.remove(&before.use_number);
        }
        while self.rows.len() > most
            && let Some((_, oldest)) = self.used.pop_first()
        {
            self.rows.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx_ps::{Control, ControlSettings, Grant, PhaseKind, Results, Work};
    use phalanx_testkit::Random;

    use super::*;

    const WORKERS: usize = 3;
    const ROWS: u64 = 6;

    #[test]
    fn the_row_that_was_used_longest_ago_gives_way() {
        let mut cache = RowCache::default();
        for number in 0..3 {
            cache.keep((0, number), number, &[number as f32], 3);
        }
        assert_eq!(cache.find((0, 0), 0), Some(&[0.0][..]));
        cache.keep((1, 0), 3, &[9.0], 3);
        assert_eq!(cache.find((0, 1), 0), None);
        assert_eq!(cache.find((0, 0), 1), None, "it is too old");
        assert_eq!(cache.find((0, 0), 0), Some(&[0.0][..]));
        // A row that is pulled again takes one place.
        cache.keep((0, 0), 7, &[1.0], 3);
        assert_eq!(cache.find((0, 0), 7), Some(&[1.0][..]));
        assert_eq!(cache.find((0, 2), 2), Some(&[2.0][..]));
        assert_eq!((cache.rows.len(), cache.used.len()), (3, 3));
        for number in 0..10_000 {
            cache.keep((0, number), 0, &[0.0], 100);
        }
        assert_eq!((cache.rows.len(), cache.used.len()), (100, 100));
        cache.clear();
        assert_eq!(cache.find((0, 9999), 0), None);
    }

    #[test]
    fn no_row_outlives_a_clock_that_falls_back() {
        let mut cache = RowCache::default();
        cache.go_on(105);
        cache.keep((0, 0), 100, &[1.0], 9);
        for own in [105, 106] {
            cache.go_on(own);
            assert_eq!(cache.find((0, 0), 100), Some(&[1.0][..]));
        }
        cache.go_on(8);
        assert_eq!(cache.find((0, 0), 5), None);
        cache.keep((0, 0), 7, &[2.0], 9);
        cache.go_on(9);
        assert_eq!(cache.find((0, 0), 6), Some(&[2.0][..]));
    }

    /// Workers that train on rows of a table. A row is a number for each worker here: how many of its batches are in it.
    struct World {
        random: Random,
        mode: Mode,
        steps: u64,
        control: Control,
        /// How many batches of each worker the server has.
        pushed: [u64; WORKERS],
        caches: [RowCache; WORKERS],
        working: [Option<(Work, bool)>; WORKERS],
        cached: u64,
        pulled: u64,
    }

    impl World {
        fn new(seed: u64, mode: Mode, steps: u64) -> Self {
            let settings = ControlSettings {
                workers: WORKERS,
                mode,
                goes_on_without_chief: true,
            };
            let mut control = Control::new(settings.clone());
            for worker in 0..WORKERS {
                control.hello(Duration::ZERO, worker, 1, &settings).unwrap();
            }
            control.enter(0, "epoch", PhaseKind::Train, 0..300).unwrap();
            Self {
                random: Random::new(seed),
                mode,
                steps,
                control,
                pushed: [0; WORKERS],
                caches: Default::default(),
                working: Default::default(),
                cached: 0,
                pulled: 0,
            }
        }

        /// Whether there is more to do.
        fn step(&mut self) -> bool {
            // Some are slower than others.
            let worker = [0, 0, 0, 1, 1, 2][self.random.below(6) as usize];
            match self.working[worker].take() {
                None => match self
                    .control
                    .next(Duration::ZERO, worker, "epoch", &[])
                    .unwrap()
                {
                    Grant::Work(work) => self.working[worker] = Some((work, false)),
                    Grant::Wait { .. } => {}
                    Grant::Over(_) => return false,
                },
                Some((work, false)) => {
                    self.use_rows(worker, work.clock.unwrap());
                    self.working[worker] = Some((work, true));
                }
                Some((work, true)) => {
                    self.pushed[worker] += 1;
                    let results = Results {
                        weight: 1.0,
                        rows: 1.0,
                        staleness: 0,
                        bytes: Vec::new(),
                    };
                    self.control
                        .done(worker, "epoch", work.id, results)
                        .unwrap();
                }
            }
            true
        }

        fn use_rows(&mut self, worker: usize, clock: Clock) {
            assert_eq!(clock.own, self.pushed[worker]);
            let oldest = clock.own.saturating_sub(self.steps);
            for _ in 0..3 {
                let key = (0, self.random.below(ROWS).min(self.random.below(ROWS)));
                let cache = &mut self.caches[worker];
                let used: Vec<f32> = match cache.find(key, oldest) {
                    Some(found) => {
                        self.cached += 1;
                        found.to_vec()
                    }
                    None => {
                        self.pulled += 1;
                        let now = self.pushed.map(|count| count as f32);
                        cache.keep(key, stamp(self.mode, clock), &now, ROWS as usize);
                        now.to_vec()
                    }
                };
                let bound_to = |other: &usize| self.mode != Mode::Async || *other == worker;
                for other in (0..WORKERS).filter(bound_to) {
                    assert!(
                        used[other] as u64 >= oldest,
                        "worker {worker} at {clock:?} uses a row with {} batches of worker {other}",
                        used[other]
                    );
                }
            }
        }
    }

    /// A row that is used has of every worker all batches but the last ones that the bound allows, as a row that is pulled does.
    #[test]
    fn no_row_that_is_used_is_older_than_the_bound() {
        for steps in [1, 2, 5] {
            let (mut cached, mut pulled) = (0, 0);
            for (seed, mode) in (0..30).flat_map(|seed| {
                [Mode::BoundedStaleness { steps }, Mode::Async].map(|mode| (seed, mode))
            }) {
                let mut world = World::new(seed, mode, steps);
                while world.step() {}
                (cached, pulled) = (cached + world.cached, pulled + world.pulled);
            }
            println!("{steps} steps: {cached} cached, {pulled} pulled");
            assert!(cached > pulled / 10, "{cached} of {pulled}");
        }
    }

    #[test]
    fn steps_that_follow_from_each_other_keep_no_row() {
        let options = CacheOptions { rows: 9, steps: 4 };
        assert_eq!(options.bound(Mode::Async), Some(4));
        assert_eq!(options.bound(Mode::BoundedStaleness { steps: 7 }), Some(7));
        assert_eq!(options.bound(Mode::BoundedStaleness { steps: 0 }), None);
        assert_eq!(options.bound(Mode::Sync { backup_workers: 1 }), None);
        assert_eq!(CacheOptions { rows: 0, ..options }.bound(Mode::Async), None);
        assert_eq!(
            CacheOptions {
                steps: 0,
                ..options
            }
            .bound(Mode::Async),
            None
        );
    }
}
