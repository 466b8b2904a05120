//! What a training has is drawn feature by feature, so that it can be drawn again without some of them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::random::Random;

/// The choices of one training.
#[derive(Debug)]
pub(crate) struct Draw {
    seed: u64,
    number: u64,
    without: BTreeSet<String>,
    has: RefCell<BTreeSet<&'static str>>,
    /// Steps of padding behind all sequences.
    padding: usize,
}

impl Draw {
    /// The training with this number, without these features.
    pub(crate) const fn new(seed: u64, number: u64, without: BTreeSet<String>) -> Self {
        Self {
            seed,
            number,
            without,
            has: RefCell::new(BTreeSet::new()),
            padding: 0,
        }
    }

    /// The same training, with so many more steps of padding behind all sequences.
    pub(crate) fn padded(&self, padding: usize) -> Self {
        Self {
            padding,
            ..Self::new(self.seed, self.number, self.without.clone())
        }
    }

    /// The same training without these features.
    pub(crate) fn less(&self, features: &[&str]) -> Self {
        let more = features.iter().map(|&feature| feature.to_owned());
        let without = self.without.iter().cloned().chain(more).collect();
        Self::new(self.seed, self.number, without)
    }

    pub(crate) const fn padding(&self) -> usize {
        self.padding
    }

    /// Random numbers for one choice: those of others do not depend on how many it takes.
    pub(crate) fn random(&self, choice: &str) -> Random {
        let stream = crc32c::crc32c(choice.as_bytes());
        Random::of(self.seed ^ (u64::from(stream) << 20), self.number)
    }

    /// Whether it has a feature, which this chance gives it.
    pub(crate) fn has(&self, feature: &'static str, chance: f64) -> bool {
        let has = self.random(feature).chance(chance) && !self.without.contains(feature);
        if has {
            self.has.borrow_mut().insert(feature);
        }
        has
    }

    /// The features that it has of those that were asked for.
    pub(crate) fn features(&self) -> Vec<&'static str> {
        self.has.borrow().iter().copied().collect()
    }
}
