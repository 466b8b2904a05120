//! `zip`: the tensors of two datasets side by side.

use super::Stage;
use crate::Result;
use crate::data::{Dataset, Example};

struct Zip {
    inputs: [Dataset; 2],
}

impl Dataset {
    /// Examples with the inputs and the outputs of both, as long as the shorter one; sample weights multiply.
    #[must_use]
    pub fn zip(&self, other: &Self) -> Self {
        let inputs = [self.clone(), other.clone()];
        Self::of(Zip { inputs })
    }
}

impl Stage for Zip {
    fn inputs(&self) -> &[Dataset] {
        &self.inputs
    }

    fn len(&self) -> Option<usize> {
        self.inputs.iter().filter_map(Dataset::len).min()
    }

    fn origin(&self, sum: u32, epoch: u64, i: usize) -> Result<u32> {
        let inputs = self.inputs.iter();
        Ok(inputs.fold(sum, |sum, input| input.origin(sum, epoch, i)))
    }

    fn read(&self, epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
        let mut whole = Example::default();
        for input in &self.inputs {
            let Some(example) = input.read_counting_skips(epoch, i, count)? else {
                return Ok(None);
            };
            whole.x.extend(example.x);
            whole.y.extend(example.y);
            whole.weight = match (whole.weight, example.weight) {
                (Some(a), Some(b)) => Some(a * b),
                (a, b) => a.or(b),
            };
        }
        Ok(Some(whole))
    }
}
