//! Tables of which only the rows that batches name travel and are kept: a row is made when it is first changed, from the number of its
//! place, with the values that it would have in a table that is there as a whole.

use std::collections::{BTreeMap, HashMap};

use half::bf16;
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::narrow::{Wire, is_narrow};
use super::values::Answer;
use crate::Result;
use crate::nn::{FirstRows, Initializer};
use crate::optim::{Optimizer, ParamSpec};

/// The fewest rows that a program updates; numbers of rows are powers of two, so that there are few programs.
const FEWEST: usize = 64;

/// A table whose rows lie on all servers in turns: row `i` on server `i % servers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeldTable {
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) initializer: Initializer,
    pub(crate) seed: u64,
    /// Whether weight decay takes from the rows that a step touches.
    pub(crate) decays: bool,
    /// What the slots of a row are before it is first changed.
    pub(crate) fills: Vec<f64>,
}

/// TableRows of a table with their numbers, of the values alone or with the slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TableRows {
    pub(crate) numbers: Vec<u64>,
    pub(crate) values: Vec<f32>,
}

impl HeldTable {
    pub(crate) fn first_rows(&self) -> Option<FirstRows> {
        let dims = [self.rows, self.width];
        self.initializer.rows(dims, self.seed, &self.name)
    }

    /// The numbers of a row with its slots.
    pub(crate) fn whole_width(&self) -> usize {
        self.width * (1 + self.fills.len())
    }

    pub(crate) fn param(&self, rows: usize) -> ParamSpec {
        ParamSpec::new(&self.name, Shape::f32([rows, self.width]))
    }
}

impl TableRows {
    /// As bytes: how many, their numbers, their values.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        self.write_as(Wire::Same, bytes);
    }

    /// The same with values as they travel.
    pub(crate) fn write_as(&self, wire: Wire, bytes: &mut Vec<u8>) {
        bytes.extend((self.numbers.len() as u64).to_le_bytes());
        bytes.extend(self.numbers.iter().flat_map(|number| number.to_le_bytes()));
        write_values(&self.values, wire, bytes);
    }

    /// The rows at the beginning of bytes, each of `width` numbers, and what follows them.
    pub(crate) fn read(bytes: &[u8], width: usize) -> Answer<(Self, &[u8])> {
        Self::read_as(bytes, width, Wire::Same)
    }

    /// The same of values as they travel.
    pub(crate) fn read_as(bytes: &[u8], width: usize, wire: Wire) -> Answer<(Self, &[u8])> {
        let short = || "rows of a table end early".to_owned();
        let (count, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
        let count = usize::try_from(u64::from_le_bytes(*count)).map_err(|_| short())?;
        let length = |each: usize| count.checked_mul(each).ok_or_else(short);
        let (numbers, rest) = rest.split_at_checked(length(8)?).ok_or_else(short)?;
        let (values, rest) = rest
            .split_at_checked(length(value_bytes(wire) * width)?)
            .ok_or_else(short)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let rows = Self {
            numbers: numbers.chunks_exact(8).map(number).collect(),
            values: read_values(values, wire),
        };
        Ok((rows, rest))
    }

    /// The sum of rows by their shares, each row once.
    pub(crate) fn merged(parts: &[(Self, f64)], width: usize) -> Self {
        let mut sums: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (rows, share) in parts {
            for (number, values) in rows.numbers.iter().zip(rows.values.chunks_exact(width)) {
                let sums = sums.entry(*number).or_insert_with(|| vec![0.0; width]);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += f64::from(*value) * share;
                }
            }
        }
        Self {
            numbers: sums.keys().copied().collect(),
            values: sums.values().flatten().map(|sum| *sum as f32).collect(),
        }
    }
}

/// The bytes of a value of a row on its way.
pub(super) fn value_bytes(wire: Wire) -> usize {
    if is_narrow(DType::F32, wire) { 2 } else { 4 }
}

/// Values of rows as they travel.
pub(super) fn write_values(values: &[f32], wire: Wire, bytes: &mut Vec<u8>) {
    if is_narrow(DType::F32, wire) {
        let element = |value: &f32| bf16::from_f32(*value).to_le_bytes();
        return bytes.extend(values.iter().flat_map(element));
    }
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Values of rows as they came.
pub(super) fn read_values(bytes: &[u8], wire: Wire) -> Vec<f32> {
    if is_narrow(DType::F32, wire) {
        let elements = bytes.as_chunks::<2>().0.iter();
        return elements
            .map(|own| bf16::from_le_bytes(*own).to_f32())
            .collect();
    }
    let elements = bytes.as_chunks::<4>().0.iter();
    elements.map(|own| f32::from_le_bytes(*own)).collect()
}

/// The rows of a table that a server has.
pub(crate) struct TableStore {
    pub(crate) held: HeldTable,
    first: FirstRows,
    /// Where in `values` a row is.
    places: HashMap<u64, usize>,
    numbers: Vec<u64>,
    /// Of each row its values, then its slots.
    values: Vec<f32>,
}

impl TableStore {
    pub(crate) fn new(held: &HeldTable) -> Answer<Self> {
        let first = held.first_rows();
        let first = first.ok_or("a table whose rows are not made one by one")?;
        Ok(Self {
            held: held.clone(),
            first,
            places: HashMap::new(),
            numbers: Vec::new(),
            values: Vec::new(),
        })
    }

    fn check(&self, numbers: &[u64]) -> Answer<()> {
        match numbers.iter().find(|row| **row >= self.held.rows as u64) {
            None => Ok(()),
            Some(row) => Err(format!(
                "row {row} of `{}`, which has {}",
                self.held.name, self.held.rows
            )),
        }
    }

    /// The row with its slots, as it is or would first be.
    fn fill(&self, number: u64, whole: &mut [f32]) {
        let width = self.held.width;
        if let Some(&at) = self.places.get(&number) {
            let length = whole.len();
            whole.copy_from_slice(&self.values[at * self.held.whole_width()..][..length]);
            return;
        }
        self.first.fill(number, &mut whole[..width]);
        let slots = whole[width..].chunks_exact_mut(width);
        for (slot, fill) in slots.zip(&self.held.fills) {
            slot.fill(*fill as f32);
        }
    }

    /// The values of rows; none is made that was not there.
    pub(crate) fn get(&self, numbers: &[u64]) -> Answer<Vec<f32>> {
        self.check(numbers)?;
        let mut values = vec![0.0; numbers.len() * self.held.width];
        let rows = values.chunks_exact_mut(self.held.width);
        for (number, row) in numbers.iter().zip(rows) {
            self.fill(*number, row);
        }
        Ok(values)
    }

    /// Sets rows with their slots.
    pub(crate) fn set(&mut self, rows: &TableRows) -> Answer<()> {
        self.check(&rows.numbers)?;
        let whole = self.held.whole_width();
        for (number, values) in rows.numbers.iter().zip(rows.values.chunks_exact(whole)) {
            match self.places.get(number) {
                Some(&at) => self.values[at * whole..][..whole].copy_from_slice(values),
                None => {
                    self.places.insert(*number, self.numbers.len());
                    self.numbers.push(*number);
                    self.values.extend_from_slice(values);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.numbers.clear();
        self.values.clear();
    }

    /// All rows that were changed, with their slots.
    pub(crate) fn all(&self) -> TableRows {
        TableRows {
            numbers: self.numbers.clone(),
            values: self.values.clone(),
        }
    }

    /// Values and slots of rows as tensors of `padded` rows; what is after the rows is 0.
    pub(crate) fn gathered(&self, numbers: &[u64], padded: usize) -> Answer<Vec<HostTensor>> {
        self.check(numbers)?;
        let (width, whole) = (self.held.width, self.held.whole_width());
        let mut arrays = vec![vec![0f32; padded * width]; 1 + self.held.fills.len()];
        let mut row = vec![0.0; whole];
        for (at, number) in numbers.iter().enumerate() {
            self.fill(*number, &mut row);
            for (array, part) in arrays.iter_mut().zip(row.chunks_exact(width)) {
                array[at * width..][..width].copy_from_slice(part);
            }
        }
        let tensor = |array: Vec<f32>| HostTensor::new([padded, width], &array);
        Ok(arrays.into_iter().map(tensor).collect())
    }

    /// Puts values and slots of rows back.
    pub(crate) fn scattered(&mut self, numbers: &[u64], arrays: &[HostTensor]) -> Answer<()> {
        let width = self.held.width;
        let arrays: Vec<Vec<f32>> = arrays
            .iter()
            .map(|array| array.values().unwrap_or_default())
            .collect();
        let mut values = Vec::with_capacity(numbers.len() * self.held.whole_width());
        for at in 0..numbers.len() {
            for array in &arrays {
                values.extend_from_slice(&array[at * width..][..width]);
            }
        }
        let numbers = numbers.to_vec();
        self.set(&TableRows { numbers, values })
    }
}

/// With how many rows the program is that updates this number of them.
pub(crate) fn padded(rows: usize) -> usize {
    rows.next_power_of_two().max(FEWEST)
}

/// The program that updates rows of a table. Arguments are iterations, the slots of the whole optimizer, the rows, their slots and their
/// gradient; outputs are the rows and their slots.
pub(crate) fn update(optimizer: &Optimizer, table: &HeldTable, rows: usize) -> Result<Program> {
    let graph = Graph::new();
    let spec = table.param(rows);
    let slots = optimizer.slots(std::slice::from_ref(&spec));
    let iterations = graph.parameter("iterations", Shape::scalar(DType::I64));
    let bind = |name: &str, shape: &Shape| graph.parameter(name, shape.clone());
    let of_all = slots.iter().filter(|slot| slot.param.is_none());
    let of_all: Vec<Tensor> = of_all.map(|slot| bind("slot", &slot.shape)).collect();
    let values = bind("rows", &spec.shape);
    let of_rows = slots.iter().filter(|slot| slot.param.is_some());
    let of_rows: Vec<Tensor> = of_rows.map(|slot| bind("slot", &slot.shape)).collect();
    let gradient = bind("gradient", &spec.shape);
    let (mut of_all, mut of_rows) = (of_all.into_iter(), of_rows.into_iter());
    let before: Vec<Tensor> = slots
        .iter()
        .filter_map(|slot| match slot.param {
            None => of_all.next(),
            Some(_) => of_rows.next(),
        })
        .collect();
    let applied = optimizer.apply_scaled(
        &[spec],
        &iterations,
        &[values],
        &[gradient],
        (&before, None),
    );
    let after = slots.iter().zip(&applied.slots);
    let after = after.filter(|(slot, _)| slot.param.is_some());
    let outputs = applied.params.iter().chain(after.map(|(_, value)| value));
    let outputs: Vec<(&str, &Tensor)> = outputs.map(|value| ("row", value)).collect();
    Ok(graph.finish(&outputs)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: usize) -> HeldTable {
        HeldTable {
            name: "users/embeddings".into(),
            rows,
            width: 16,
            initializer: Initializer::RandomNormal {
                mean: 0.0,
                stddev: 0.1,
            },
            seed: 7,
            decays: false,
            fills: vec![0.5],
        }
    }

    #[test]
    fn rows_are_those_of_the_table_as_a_whole() {
        let held = table(1000);
        let whole = held
            .initializer
            .values(&Shape::f32([1000, 16]), held.seed, &held.name);
        let store = TableStore::new(&held).unwrap();
        let numbers: Vec<u64> = (0..1000).rev().collect();
        let rows = store.get(&numbers).unwrap();
        let whole: Vec<f32> = whole.values().unwrap();
        for (number, row) in numbers.iter().zip(rows.chunks(16)) {
            assert_eq!(row, &whole[*number as usize * 16..][..16], "row {number}");
        }
        assert!(store.get(&[1000]).is_err());
    }

    /// A table of 100 million rows, 12.8 GB with its slot, of which two servers hold what was touched.
    #[test]
    fn a_table_takes_memory_for_the_rows_that_were_touched() {
        let mut servers = [0, 1].map(|_| TableStore::new(&table(100_000_000)).unwrap());
        let touched: Vec<u64> = (0..20_000u64).map(|i| i * 4999 + 13).collect();
        for (at, server) in servers.iter_mut().enumerate() {
            let own = touched.iter().filter(|row| **row as usize % 2 == at);
            let own: Vec<u64> = own.copied().collect();
            for numbers in own.chunks(500) {
                let arrays = server.gathered(numbers, padded(numbers.len())).unwrap();
                assert_eq!(arrays[1].values::<f32>().unwrap()[0], 0.5);
                server.scattered(numbers, &arrays).unwrap();
            }
            // What is read only is not kept.
            server.get(&[99_999_998, 99_999_999]).unwrap();
            assert_eq!(server.numbers.len(), own.len());
        }
        let rows: usize = servers.iter().map(|server| server.values.len()).sum();
        assert_eq!(rows, 20_000 * 32);
        // 2.6 MB of values, and at most as much room for more.
        let capacity: usize = servers.iter().map(|server| server.values.capacity()).sum();
        assert!(capacity <= 2 * rows, "{capacity} values for {rows}");
    }

    #[test]
    fn rows_come_back_from_their_bytes_and_are_merged_by_number() {
        let rows = |numbers: &[u64], values: &[f32]| TableRows {
            numbers: numbers.to_vec(),
            values: values.to_vec(),
        };
        let first = rows(&[5, 2], &[1.0, 2.0, 3.0, 4.0]);
        let mut bytes = Vec::new();
        first.write(&mut bytes);
        bytes.push(9);
        let (back, rest) = TableRows::read(&bytes, 2).unwrap();
        assert_eq!((&back, rest), (&first, &[9][..]));
        for cut in 0..bytes.len() - 1 {
            assert!(TableRows::read(&bytes[..cut], 2).is_err());
        }
        assert!(TableRows::read(&u64::MAX.to_le_bytes(), 2).is_err());
        let second = rows(&[2], &[10.0, 20.0]);
        let merged = TableRows::merged(&[(first, 0.5), (second, 0.5)], 2);
        assert_eq!(merged, rows(&[2, 5], &[6.5, 12.0, 0.5, 1.0]));
    }
}
