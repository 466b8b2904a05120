//! Orders of features: which of PyTorch's each of ours is.

use std::sync::Arc;

/// In which order PyTorch has the features of a value that are ours in theirs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FeatureOrder {
    /// The same.
    Same,
    /// The number of each feature of ours in PyTorch's.
    Known(Arc<[usize]>),
    /// Whatever the layers behind need: the outputs of a layer whose variables are put in that order.
    Free(usize),
    /// Parts one after the other, each with its size.
    Joined(Vec<(Self, usize)>),
    /// It cannot be known, for this reason.
    Lost(Arc<str>),
}

/// What is known of the free orders.
#[derive(Debug, Default)]
pub(super) struct FreeOrders(Vec<Option<FeatureOrder>>);

/// Two orders differ that must be one.
#[derive(Debug, PartialEq)]
pub(super) struct OrdersDiffer;

impl FeatureOrder {
    /// From the number of each feature in PyTorch's order.
    pub(super) fn of(numbers: Vec<usize>) -> Self {
        match numbers.iter().enumerate().all(|(at, &number)| at == number) {
            true => Self::Same,
            false => Self::Known(numbers.into()),
        }
    }

    /// All elements of an example with these dims, channels last, which PyTorch has first.
    pub(super) fn channels_first(dims: &[usize]) -> Self {
        let Some((&channels, places)) = dims.split_last() else {
            return Self::Same;
        };
        let places: usize = places.iter().product();
        let number = |at: usize| at % channels * places + at / channels;
        Self::of((0..places * channels).map(number).collect())
    }
}

impl FreeOrders {
    /// A new one.
    pub(super) fn another(&mut self) -> FeatureOrder {
        self.0.push(None);
        FeatureOrder::Free(self.0.len() - 1)
    }

    /// An order as far as it is known.
    pub(super) fn settled(&self, order: &FeatureOrder) -> FeatureOrder {
        match order {
            FeatureOrder::Free(at) => match &self.0[*at] {
                Some(known) => self.settled(known),
                None => order.clone(),
            },
            FeatureOrder::Joined(parts) => {
                let parts = parts.iter();
                let parts = parts.map(|(part, size)| (self.settled(part), *size));
                joined(parts.collect())
            }
            _ => order.clone(),
        }
    }

    /// The number of each feature in PyTorch's order, where it is another; what is free stays as it is.
    pub(super) fn numbers(&self, order: &FeatureOrder) -> Result<Option<Arc<[usize]>>, Arc<str>> {
        match self.kept(order) {
            FeatureOrder::Known(numbers) => Ok(Some(numbers)),
            FeatureOrder::Lost(reason) => Err(reason),
            _ => Ok(None),
        }
    }

    /// An order in which what is free stays as it is.
    fn kept(&self, order: &FeatureOrder) -> FeatureOrder {
        match self.settled(order) {
            FeatureOrder::Free(_) => FeatureOrder::Same,
            FeatureOrder::Joined(parts) => {
                let parts = parts.iter();
                joined(parts.map(|(part, size)| (self.kept(part), *size)).collect())
            }
            known => known,
        }
    }

    /// Makes one order of two, where what is free allows it.
    pub(super) fn agree(
        &mut self,
        a: &FeatureOrder,
        b: &FeatureOrder,
    ) -> Result<FeatureOrder, OrdersDiffer> {
        match (self.settled(a), self.settled(b)) {
            (a, b) if a == b => Ok(a),
            (FeatureOrder::Lost(reason), _) | (_, FeatureOrder::Lost(reason)) => {
                Ok(FeatureOrder::Lost(reason))
            }
            (FeatureOrder::Free(at), FeatureOrder::Joined(parts))
            | (FeatureOrder::Joined(parts), FeatureOrder::Free(at)) => {
                let own = FeatureOrder::Free(at);
                if parts.iter().any(|(part, _)| *part == own) {
                    self.0[at] = Some(FeatureOrder::Same);
                } else {
                    self.0[at] = Some(FeatureOrder::Joined(parts.clone()));
                }
                Ok(self.settled(&FeatureOrder::Joined(parts)))
            }
            (FeatureOrder::Free(at), other) | (other, FeatureOrder::Free(at)) => {
                self.0[at] = Some(other.clone());
                Ok(other)
            }
            (FeatureOrder::Joined(parts), other) | (other, FeatureOrder::Joined(parts)) => {
                self.parts_agree(&parts, &other)
            }
            _ => Err(OrdersDiffer),
        }
    }

    /// Gives each part the share of the whole that is its own.
    fn parts_agree(
        &mut self,
        parts: &[(FeatureOrder, usize)],
        whole: &FeatureOrder,
    ) -> Result<FeatureOrder, OrdersDiffer> {
        let numbers = self.numbers(whole).map_err(|_| OrdersDiffer)?;
        let mut start = 0;
        for (part, size) in parts {
            let own = match &numbers {
                Some(numbers) => share(&numbers[start..start + size], start)?,
                None => FeatureOrder::Same,
            };
            self.agree(part, &own)?;
            start += size;
        }
        // What was free in a whole of parts was taken as it is.
        self.fix(whole);
        Ok(self.settled(whole))
    }

    /// Leaves what is free in an order as it is, for good.
    pub(super) fn fix(&mut self, order: &FeatureOrder) {
        match self.settled(order) {
            FeatureOrder::Free(at) => self.0[at] = Some(FeatureOrder::Same),
            FeatureOrder::Joined(parts) => parts.iter().for_each(|(part, _)| self.fix(part)),
            _ => {}
        }
    }

    /// The order of the elements of several vectors one after the other, each of this size and in this order.
    pub(super) fn repeated(
        &mut self,
        order: &FeatureOrder,
        count: usize,
        size: usize,
    ) -> FeatureOrder {
        if count == 1 {
            return order.clone();
        }
        self.fix(order);
        match self.numbers(order) {
            Err(reason) => FeatureOrder::Lost(reason),
            Ok(None) => FeatureOrder::Same,
            Ok(Some(numbers)) => {
                let number = |at: usize| at / size * size + numbers[at % size];
                FeatureOrder::of((0..count * size).map(number).collect())
            }
        }
    }
}

/// The numbers of a part that begins here, which must all be in it.
fn share(numbers: &[usize], start: usize) -> Result<FeatureOrder, OrdersDiffer> {
    let own = |&number: &usize| {
        let own = number.checked_sub(start).ok_or(OrdersDiffer)?;
        (own < numbers.len()).then_some(own).ok_or(OrdersDiffer)
    };
    let numbers = numbers.iter().map(own).collect::<Result<_, _>>()?;
    Ok(FeatureOrder::of(numbers))
}

/// Settled parts as one order.
fn joined(parts: Vec<(FeatureOrder, usize)>) -> FeatureOrder {
    let mut numbers = Vec::new();
    for (part, size) in &parts {
        let start = numbers.len();
        match part {
            FeatureOrder::Same => numbers.extend(start..start + size),
            FeatureOrder::Known(own) => numbers.extend(own.iter().map(|number| start + number)),
            FeatureOrder::Lost(reason) => return FeatureOrder::Lost(reason.clone()),
            FeatureOrder::Free(_) | FeatureOrder::Joined(_) => return FeatureOrder::Joined(parts),
        }
    }
    FeatureOrder::of(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_come_first() {
        // [2, 3] here, [3, 2] there.
        let order = FeatureOrder::channels_first(&[2, 3]);
        assert_eq!(order, FeatureOrder::Known([0, 2, 4, 1, 3, 5].into()));
        for dims in [&[4, 5, 1][..], &[1, 1, 6], &[3], &[]] {
            assert_eq!(FeatureOrder::channels_first(dims), FeatureOrder::Same);
        }
    }

    #[test]
    fn parts_take_their_shares() {
        let mut free = FreeOrders::default();
        let (a, b) = (free.another(), free.another());
        let parts = FeatureOrder::Joined(vec![(a.clone(), 2), (b.clone(), 1)]);
        let crossing = FeatureOrder::of(vec![2, 1, 0]);
        assert_eq!(free.agree(&parts, &crossing), Err(OrdersDiffer));
        let whole = FeatureOrder::of(vec![1, 0, 2]);
        let agreed = free.agree(&parts, &whole);
        assert_eq!(agreed, Ok(whole));
        assert_eq!(free.settled(&a), FeatureOrder::of(vec![1, 0]));
        assert_eq!(free.settled(&b), FeatureOrder::Same);
        // No longer free.
        assert_eq!(free.agree(&a, &FeatureOrder::Same), Err(OrdersDiffer));
        assert_eq!(free.repeated(&a, 2, 2), FeatureOrder::of(vec![1, 0, 3, 2]));
    }
}
