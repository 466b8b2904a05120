//! Reading event files, of this crate and of TensorFlow, PyTorch and others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use crate::record::{Framed, read_framed};
use crate::wire::{Fields, Wire};
use crate::writer::error;
use crate::{Histogram, SummaryError};

/// How deep below a folder runs are looked for.
const DEPTH: usize = 8;

/// A number of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The step.
    pub step: i64,
    /// When it was written, in seconds since 1970.
    pub wall_time: f64,
    /// The number.
    pub value: f64,
}

/// What the event files of a folder say: a run of TensorBoard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The numbers of each tag, in the order in which they were written.
    pub scalars: BTreeMap<String, Vec<Point>>,
    /// The histograms of each tag with their steps.
    pub histograms: BTreeMap<String, Vec<(i64, Histogram)>>,
    /// The texts of each tag with their steps.
    pub texts: BTreeMap<String, Vec<(i64, String)>>,
    /// The images of each tag with their steps: width, height and PNG file of the first of a step.
    pub images: BTreeMap<String, Vec<(i64, Vec<u8>)>>,
    /// The names and kinds of the nodes of the graph.
    pub nodes: Vec<(String, String)>,
    /// Files that end within a record, as files that are being written do, or with one that is damaged: what came before is there.
    pub cut: Vec<PathBuf>,
}

impl Run {
    /// Reads the event files of a folder, not of the folders in it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, SummaryError> {
        let folder = folder.as_ref();
        let mut files = event_files(folder)?;
        // The second of their beginning is in their names.
        files.sort();
        let mut run = Self::default();
        for path in files {
            let file = File::open(&path).map_err(error("read", &path))?;
            let is_whole = run
                .add(BufReader::new(file))
                .map_err(error("read", &path))?;
            if !is_whole {
                run.cut.push(path);
            }
        }
        Ok(run)
    }

    /// Adds the events of a file; whether all of it was read, to a last record that is whole.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn add(&mut self, mut file: impl Read) -> std::io::Result<bool> {
        loop {
            match read_framed(&mut file)? {
                Framed::Record(event) => self.add_event(&event),
                Framed::End => return Ok(true),
                Framed::Damaged => return Ok(false),
            }
        }
    }

    /// Adds an `Event` message; what is malformed or unknown in it is left out.
    pub fn add_event(&mut self, event: &[u8]) {
        let (mut step, mut wall_time) = (0, 0.0);
        for (number, value) in Fields::of(event) {
            match number {
                1 => wall_time = value.double(),
                2 => step = value.integer().cast_signed(),
                _ => {}
            }
        }
        for (number, value) in Fields::of(event) {
            match number {
                4 => self.nodes = nodes(value.bytes()),
                5 => {
                    let values = Fields::of(value.bytes()).filter(|(number, _)| *number == 1);
                    values.for_each(|(_, value)| self.add_value(step, wall_time, value.bytes()));
                }
                // `SessionLog.START`.
                7 if Fields::last(value.bytes(), 1) == Some(Wire::Varint(1)) => self.purge(step),
                _ => {}
            }
        }
    }

    /// Forgets a step and later ones, which are trained again.
    fn purge(&mut self, from: i64) {
        self.scalars
            .values_mut()
            .for_each(|points| points.retain(|point| point.step < from));
        keep_before(&mut self.histograms, from);
        keep_before(&mut self.texts, from);
        keep_before(&mut self.images, from);
    }

    /// Adds a `Summary.Value`.
    fn add_value(&mut self, step: i64, wall_time: f64, value: &[u8]) {
        let Some(tag) = Fields::last(value, 1).map(Wire::text) else {
            return;
        };
        let plugin = Fields::last(value, 9)
            .and_then(|metadata| Fields::last(metadata.bytes(), 1))
            .and_then(|data| Fields::last(data.bytes(), 1))
            .map(Wire::text);
        let point = |value| Point {
            step,
            wall_time,
            value,
        };
        if let Some(Wire::Fixed32(bytes)) = Fields::last(value, 2) {
            // `simple_value`, which PyTorch writes.
            let value = f64::from(f32::from_le_bytes(bytes));
            self.scalars.entry(tag).or_default().push(point(value));
            return;
        }
        let tensor = Fields::last(value, 8).map_or(&[][..], Wire::bytes);
        match plugin.as_deref() {
            Some("scalars") => {
                if let Some(&value) = numbers(tensor).first() {
                    self.scalars.entry(tag).or_default().push(point(value));
                }
            }
            Some("histograms") => {
                let rows = numbers(tensor).as_chunks().0.to_vec();
                let of_tag = self.histograms.entry(tag).or_default();
                of_tag.push((step, Histogram(rows)));
            }
            Some("text") => {
                let text = strings(tensor).into_iter().next().unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                self.texts.entry(tag).or_default().push((step, text));
            }
            Some("images") => {
                if let Some(png) = strings(tensor).into_iter().nth(2) {
                    self.images.entry(tag).or_default().push((step, png));
                }
            }
            _ => {}
        }
    }
}

fn keep_before<T>(tags: &mut BTreeMap<String, Vec<(i64, T)>>, from: i64) {
    tags.values_mut()
        .for_each(|values| values.retain(|(step, _)| *step < from));
}

/// The folders with event files at or below a folder, in the order of their names.
///
/// # Errors
/// Those of the file system.
pub fn find_runs(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>, SummaryError> {
    let mut found = Vec::new();
    look(folder.as_ref(), DEPTH, &mut found)?;
    found.sort();
    Ok(found)
}

fn look(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), SummaryError> {
    if !event_files(folder)?.is_empty() {
        found.push(folder.to_owned());
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Ok(());
    };
    for entry in fs::read_dir(folder)
        .map_err(error("read", folder))?
        .flatten()
    {
        // Links are not followed, so that there is an end.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            look(&entry.path(), depth, found)?;
        }
    }
    Ok(())
}

fn event_files(folder: &Path) -> Result<Vec<PathBuf>, SummaryError> {
    let entries = fs::read_dir(folder).map_err(error("read", folder))?;
    let files = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().contains("tfevents") && entry.path().is_file()
    });
    Ok(files.map(|entry| entry.path()).collect())
}

/// The elements of a `TensorProto` of floats or doubles.
fn numbers(tensor: &[u8]) -> Vec<f64> {
    let is_double = Fields::last(tensor, 1).map(Wire::integer) == Some(2);
    let mut found = Vec::new();
    for (number, value) in Fields::of(tensor) {
        match (number, value) {
            (4, Wire::Bytes(bytes)) if is_double => found.extend(doubles(bytes)),
            (4 | 5, Wire::Bytes(bytes)) => found.extend(floats(bytes)),
            (5, Wire::Fixed32(bytes)) => found.push(f64::from(f32::from_le_bytes(bytes))),
            (6, Wire::Bytes(bytes)) => found.extend(doubles(bytes)),
            (6, Wire::Fixed64(bytes)) => found.push(f64::from_le_bytes(bytes)),
            _ => {}
        }
    }
    found
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> {
    let floats = bytes.as_chunks().0.iter();
    floats.map(|&bytes| f64::from(f32::from_le_bytes(bytes)))
}

fn doubles(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f64::from_le_bytes(bytes))
}

fn strings(tensor: &[u8]) -> Vec<Vec<u8>> {
    let strings = Fields::of(tensor).filter(|(number, _)| *number == 8);
    strings.map(|(_, value)| value.bytes().to_vec()).collect()
}

/// The names and kinds of the nodes of a `GraphDef`.
fn nodes(graph: &[u8]) -> Vec<(String, String)> {
    let nodes = Fields::of(graph).filter(|(number, _)| *number == 1);
    let text = |node: &[u8], number| {
        Fields::last(node, number)
            .map(Wire::text)
            .unwrap_or_default()
    };
    nodes
        .map(|(_, node)| (text(node.bytes(), 1), text(node.bytes(), 2)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventWriter, GraphNode, Image};

    fn golden(bytes: &[u8]) -> Run {
        let mut run = Run::default();
        assert!(run.add(bytes).unwrap());
        run
    }

    #[test]
    fn files_of_tensorflow_are_read() {
        let run = golden(include_bytes!(
            "../../../tests/golden/tensorboard/events.v2"
        ));
        let losses = &run.scalars["epoch_loss"];
        let told: Vec<_> = losses
            .iter()
            .map(|point| (point.step, point.value))
            .collect();
        assert_eq!(told, [(0, 0.5), (1, 0.25), (2, f64::INFINITY), (127, 0.0)]);
        assert!(run.scalars["epoch_accuracy"][0].value.is_nan());
        assert_eq!(run.scalars["epoch_grösse"][0].step, 5_000_000_000);
        assert!(losses[0].wall_time > 1.7e9);
        let run = golden(include_bytes!(
            "../../../tests/golden/tensorboard/histograms.v2"
        ));
        let counts: Vec<_> = run.histograms["dense/kernel/histogram"]
            .iter()
            .map(|(step, histogram)| (*step, histogram.0.len(), histogram.count()))
            .collect();
        assert_eq!(
            counts,
            [(0, 30, 5.0), (1, 30, 2.0), (2, 30, 0.0), (3, 30, 100.0)]
        );
        let run = golden(include_bytes!("../../../tests/golden/tensorboard/texts.v2"));
        assert_eq!(run.texts["notes"][1], (300, "ü".to_owned()));
        let run = golden(include_bytes!(
            "../../../tests/golden/tensorboard/images.v2"
        ));
        assert!(
            run.images["dense/kernel/image"][0]
                .1
                .starts_with(b"\x89PNG")
        );
        let run = golden(include_bytes!("../../../tests/golden/tensorboard/graph.v2"));
        assert_eq!(run.nodes[1], ("dense/y".to_owned(), "Dense".to_owned()));
    }

    #[test]
    fn what_a_writer_writes_is_read_and_what_is_trained_again_forgotten() {
        let folder = std::env::temp_dir().join(format!("phalanx-reader-{}", std::process::id()));
        let mut first = EventWriter::create(folder.join("a/train")).unwrap();
        for step in 0..5 {
            first.scalar("loss", step as f32, step).unwrap();
        }
        first
            .histogram("w", &Histogram::of(&[1.0, 2.0]), 3)
            .unwrap();
        first
            .images("i", &[Image::new(1, 1, 3, &[0, 1, 2]).unwrap()], 1)
            .unwrap();
        first.graph(&[GraphNode::default()]).unwrap();
        drop(first);
        let mut second = EventWriter::create(folder.join("a/train")).unwrap();
        second.session_start(3).unwrap();
        second.scalar("loss", 30.0, 3).unwrap();
        second.flush().unwrap();
        let runs = find_runs(&folder).unwrap();
        assert_eq!(runs, [folder.join("a/train")]);
        let run = Run::read(&runs[0]).unwrap();
        let told: Vec<_> = run.scalars["loss"]
            .iter()
            .map(|point| (point.step, point.value))
            .collect();
        assert_eq!(told, [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]);
        assert_eq!(
            (
                run.histograms["w"].len(),
                run.images["i"].len(),
                run.nodes.len()
            ),
            (0, 1, 1)
        );
        assert_eq!(run.cut, Vec::<PathBuf>::new());
        // A file that is being written, and one with a wrong byte.
        let bytes = fs::read(second.path()).unwrap();
        fs::write(second.path(), &bytes[..bytes.len() - 1]).unwrap();
        let run = Run::read(&runs[0]).unwrap();
        assert_eq!(
            (run.scalars["loss"].len(), &run.cut[..]),
            (3, &[second.path().to_owned()][..])
        );
        let mut wrong = bytes.clone();
        *wrong.last_mut().unwrap() ^= 1;
        fs::write(second.path(), &wrong).unwrap();
        assert_eq!(Run::read(&runs[0]).unwrap().cut.len(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let files = [
            &include_bytes!("../../../tests/golden/tensorboard/histograms.v2")[..],
            &include_bytes!("../../../tests/golden/tensorboard/graph.v2")[..],
        ];
        for file in files {
            for at in 0..file.len().min(400) {
                let mut changed = file.to_vec();
                changed[at] ^= 0xff;
                let mut run = Run::default();
                assert!(!run.add(&changed[..]).unwrap(), "byte {at} is told");
                // Without checksums.
                run.add_event(&changed[at..]);
                run.add_event(&changed[..at]);
            }
        }
    }
}
