//! What a training leaves, and how far two of them are apart.

use phalanx::prelude::*;
use phalanx_testkit::relative_difference;

/// All that is compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Variables, slots of the optimizer, and predictions.
    pub(crate) tensors: Vec<(String, HostTensor)>,
    /// Results, and how many steps and epochs there were.
    pub(crate) numbers: Vec<(String, f64)>,
}

impl Outcome {
    /// Adds the variables and slots as they are now.
    pub(crate) fn add_state(&mut self, trainer: &Trainer) -> phalanx::Result<()> {
        let state = trainer.training_state()?;
        self.tensors.extend_from_slice(state.variables());
        self.tensors.extend_from_slice(state.slots());
        let count = state.iterations() as f64;
        self.numbers.push(("iterations".into(), count));
        // Where the end of a `fit` put others in their place.
        for (name, value) in trainer.variables()? {
            self.tensors.push((format!("{name}, as it is used"), value));
        }
        Ok(())
    }

    pub(crate) fn add_history(&mut self, history: &History) {
        for epoch in &history.epochs {
            let number = epoch.epoch;
            self.add_logs(&format!("epoch {number}: "), &epoch.logs);
            let steps = epoch.steps as f64;
            self.numbers.push((format!("epoch {number}: steps"), steps));
        }
    }

    pub(crate) fn add_logs(&mut self, what: &str, logs: &Logs) {
        let named = logs
            .iter()
            .map(|(name, value)| (format!("{what}{name}"), value));
        self.numbers.extend(named);
    }

    /// What the training says of data that it does not learn from.
    pub(crate) fn add_tests(
        &mut self,
        trainer: &mut Trainer,
        data: &Batches,
    ) -> phalanx::Result<()> {
        let logs = trainer.evaluate(data)?;
        self.add_logs("test: ", &logs);
        for (output, value) in trainer.predict(data)?.into_iter().enumerate() {
            self.tensors.push((format!("prediction {output}"), value));
        }
        Ok(())
    }

    /// The same without the names that a predicate refuses.
    pub(crate) fn only(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.tensors.retain(|(name, _)| keep(name));
        self.numbers.retain(|(name, _)| keep(name));
        self
    }

    /// How far another is away in each of its parts.
    ///
    /// # Errors
    /// They have not the same parts.
    pub(crate) fn apart(&self, other: &Self) -> Result<Vec<(String, f64)>, String> {
        let names = |outcome: &Self| {
            let tensors = outcome.tensors.iter().map(|(name, _)| name.clone());
            let numbers = outcome.numbers.iter().map(|(name, _)| name.clone());
            tensors.chain(numbers).collect::<Vec<_>>()
        };
        let (here, there) = (names(self), names(other));
        if here != there {
            let missing = here.iter().find(|name| !there.contains(name));
            let more = there.iter().find(|name| !here.contains(name));
            return Err(format!("one alone has {missing:?}, the other {more:?}"));
        }
        let tensors = self.tensors.iter().zip(&other.tensors);
        let tensors = tensors.map(|((name, a), (_, b))| match a.shape() == b.shape() {
            true => (name.clone(), relative_difference(&a.to_f64(), &b.to_f64())),
            false => (format!("the shape of {name}"), f64::INFINITY),
        });
        let numbers = self.numbers.iter().zip(&other.numbers);
        let numbers = numbers.map(|((name, a), (_, b))| {
            let apart = match a == b || a.is_nan() && b.is_nan() {
                true => 0.0,
                false => (a - b).abs() / a.abs().max(1.0),
            };
            (format!("{name}, {a} and {b}"), apart)
        });
        Ok(tensors.chain(numbers).collect())
    }

    /// The first that has other bits.
    pub(crate) fn other_bits(&self, other: &Self) -> Option<String> {
        let apart = match self.apart(other) {
            Ok(apart) => apart
                .into_iter()
                .fold(0.0, |most: f64, (_, apart)| most.max(apart)),
            Err(what) => return Some(what),
        };
        let mut tensors = self.tensors.iter().zip(&other.tensors);
        let differs = tensors.find(|((_, a), (_, b))| a.bytes() != b.bytes());
        if let Some(((name, _), _)) = differs {
            return Some(format!(
                "{name} has other bits, of the worst {apart:e} apart"
            ));
        }
        let mut numbers = self.numbers.iter().zip(&other.numbers);
        let differs = numbers.find(|((_, a), (_, b))| a.to_bits() != b.to_bits());
        differs.map(|((name, a), (_, b))| format!("{name} is {a} and {b}"))
    }
}
