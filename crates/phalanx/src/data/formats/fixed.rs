//! Files of records that are all of one length, such as CIFAR's.

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};

use super::files::{InputFile, files_matching, firsts, locate, past_the_end};
use super::tf_example::in_item;
use super::{RecordLocation, Records};
use crate::Result;
use crate::data::Example;

/// Records of one length, one file after the other.
#[derive(Debug)]
pub struct FixedRecords {
    files: Vec<InputFile>,
    firsts: Vec<usize>,
    len: usize,
    record: usize,
}

impl FixedRecords {
    /// The files that a pattern names, of records of `record` bytes each.
    ///
    /// # Errors
    /// As [`files_matching`], or when a file cannot be read, or its size is no multiple of the record's.
    pub fn open(pattern: &str, record: usize) -> Result<Self> {
        let files = InputFile::open_all(files_matching(pattern)?)?;
        for file in &files {
            if record == 0 || !file.len().is_multiple_of(record as u64) {
                let message = format!(
                    "the file has {} bytes, expected a multiple of {record}, the bytes of a record; copy it again, or check its format",
                    file.len()
                );
                return Err(file.corrupt(file.len() - file.len() % record.max(1) as u64, &message));
            }
        }
        let counts = files.iter().map(|file| file.len() as usize / record);
        let (len, firsts) = (counts.clone().sum(), firsts(counts));
        Ok(Self {
            files,
            firsts,
            len,
            record,
        })
    }
}

impl Records for FixedRecords {
    type Item = Vec<u8>;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<Vec<u8>> {
        if i >= self.len {
            return Err(past_the_end("record", i, self.len));
        }
        let (file, i) = locate(&self.firsts, i);
        let mut bytes = vec![0; self.record];
        self.files[file].read_at(&mut bytes, (i * self.record) as u64)?;
        Ok(bytes)
    }

    fn per_file(&self) -> Vec<usize> {
        self.files
            .iter()
            .map(|file| file.len() as usize / self.record)
            .collect()
    }

    fn place(&self, i: usize) -> RecordLocation {
        let (file, i) = locate(&self.firsts, i);
        RecordLocation {
            file: self.files[file].name(),
            place: format!("record {i} at byte {}", i * self.record),
        }
    }
}

/// Which version of the CIFAR files, and for CIFAR-100 which label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cifar {
    /// CIFAR-10: a label of 10 classes.
    Ten,
    /// CIFAR-100 with the label of 20 superclasses.
    HundredCoarse,
    /// CIFAR-100 with the label of 100 classes.
    HundredFine,
}

/// Pixels of an image, a plane for each colour.
const PIXELS: usize = 32 * 32;

impl Cifar {
    /// Labels of a record, which one is meant, and the number of classes.
    const fn labels(self) -> (usize, usize, u8) {
        match self {
            Self::Ten => (1, 0, 10),
            Self::HundredCoarse => (2, 0, 20),
            Self::HundredFine => (2, 1, 100),
        }
    }

    /// Bytes of a record of the binary version.
    pub(in crate::data) const fn record(self) -> usize {
        self.labels().0 + 3 * PIXELS
    }

    /// x u8 `[32, 32, 3]`, y i32 `[]`.
    pub(in crate::data) fn parse(self, record: &[u8]) -> Result<Example> {
        let (labels, at, classes) = self.labels();
        let label = record[at];
        if label >= classes {
            let message = format!(
                "found {label}, expected a class from 0 to {}; check that this is the right version of the files",
                classes - 1
            );
            return Err(in_item("the label", message));
        }
        let planes = &record[labels..];
        let mut pixels = AlignedBytes::zeroed(3 * PIXELS);
        for (at, value) in pixels.as_mut_slice().iter_mut().enumerate() {
            *value = planes[at % 3 * PIXELS + at / 3];
        }
        let shape = Shape::new(DType::U8, vec![32, 32, 3]);
        Ok(Example {
            x: vec![HostTensor::from_aligned(shape, pixels)],
            y: vec![HostTensor::scalar(i32::from(label))],
            weight: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, test_folder};

    #[test]
    fn images_have_their_colours_last() {
        let folder = test_folder::create("cifar");
        let record = |label: u8| -> Vec<u8> {
            let planes = (0..3 * PIXELS).map(|at| (at / PIXELS * 100 + at % PIXELS % 7) as u8);
            [label].into_iter().chain(planes).collect()
        };
        std::fs::write(folder.join("a.bin"), [record(3), record(9)].concat()).unwrap();
        std::fs::write(folder.join("b.bin"), record(10)).unwrap();
        let pattern = folder.join("*.bin").to_string_lossy().into_owned();
        let data = Dataset::from_cifar(&pattern, Cifar::Ten).unwrap();
        let example = data.get(0, 1).unwrap();
        let pixels = example.x[0].bytes();
        assert_eq!(
            (example.x[0].dims(), &pixels[..6]),
            (&[32, 32, 3][..], &[0, 100, 200, 1, 101, 201][..])
        );
        assert_eq!(example.y[0], HostTensor::scalar(9i32));
        let error = data.get(0, 2).unwrap_err().to_string();
        assert!(
            error.contains(
                "b.bin: record 0 at byte 0, the label: found 10, expected a class from 0 to 9"
            ),
            "{error}"
        );
        let error = Dataset::from_cifar(&pattern, Cifar::HundredFine)
            .unwrap_err()
            .to_string();
        assert!(error.contains("multiple of 3074"), "{error}");
    }
}
