//! `phalanx data`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx::Error;
use phalanx::data::{
    CorruptPolicy, Dataset, EncodedImage, Example, Feature, Features, ImageFolder, LabelColumn,
    LostBytes, Parquet, ParquetOptions, Records, Source, TextLines, TfRecordOptions,
    TfRecordWriter, TfRecords, WebDataset, files_matching, is_file_pattern, read_idx, shard_path,
};

use super::{Context, data_numpy};
use crate::args::{DataCommand, DataFormat};
use crate::csv_fields::{CsvFields, csv_options};
use crate::failure::{Exit, Failure};
use crate::image_rows::left_out;
use crate::machine::bytes;
use crate::synth::Synth;

/// The most bytes of a line, an image or a member of an archive.
const MAX_BYTES: u64 = 1 << 28;
/// Characters of a value that are shown.
const SHOWN: usize = 60;

/// Looks at data, writes them as TFRecord shards, or times reading them.
pub(crate) fn run(context: &mut Context, what: &DataCommand) -> Result<(), Failure> {
    match what {
        DataCommand::Inspect { data, format, rows } => {
            let (data, kind) = find(data, *format)?;
            inspect(context, &data, kind, *rows)
        }
        DataCommand::Shard {
            data,
            to,
            name,
            shards,
            overwrite,
        } => shard(context, data, (to, name, *overwrite), shards.get()),
        DataCommand::Synth {
            to,
            classes,
            count,
            width,
            height,
            seed,
        } => {
            let synth = Synth {
                classes: usize::from(*classes),
                count: *count,
                width: *width,
                height: *height,
                seed: *seed,
            };
            write_synth(context, &synth, to)
        }
        DataCommand::Clicks(clicks) => {
            clicks.write()?;
            context.output.line(clicks)
        }
        DataCommand::Reviews(reviews) => {
            reviews.write()?;
            context.output.line(reviews)
        }
        DataCommand::Bench {
            data,
            format,
            seconds,
        } => {
            let (data, kind) = find(data, *format)?;
            bench(context, &data, kind, *seconds)
        }
    }
}

fn write_synth(context: &mut Context, synth: &Synth, to: &Path) -> Result<(), Failure> {
    synth
        .write(to)
        .map_err(|error| Failure::new(Exit::Failed, error).next("choose another --to"))?;
    let Synth {
        count,
        classes,
        width,
        height,
        ..
    } = synth;
    context.output.line(format_args!(
        "{count} images of {width} x {height} in {classes} classes in {}",
        to.display()
    ))
}

fn failed(error: &Error) -> Failure {
    Failure::of(Exit::Failed, error)
}

/// The files that `data` names, as a path or a pattern, and their format: the one that was named, or what their names say.
fn find(data: &str, format: Option<DataFormat>) -> Result<(String, DataFormat), Failure> {
    let path = Path::new(data);
    let is_pattern = is_file_pattern(data);
    if !path.exists() && !is_pattern {
        let message = format!("there is no file or folder `{data}`");
        return Err(Failure::new(Exit::Failed, message).next("correct the path"));
    }
    if path.is_dir() {
        return Ok(in_folder(data, format));
    }
    let matched = files_matching(data).map_err(|error| failed(&error))?;
    let of_names = || {
        matched
            .first()
            .and_then(|file| kind(&file.to_string_lossy()))
    };
    match format.or_else(of_names) {
        Some(kind) => Ok((data.to_owned(), kind)),
        None => Err(Failure::new(
            Exit::Usage,
            format!("the name `{data}` does not say what format it has"),
        )
        .next("say it with --format")),
    }
}

/// A folder with folders of images, or all files of a format in it: of the one that was named, else of the first by their names, a text
/// only where there is nothing else.
fn in_folder(data: &str, format: Option<DataFormat>) -> (String, DataFormat) {
    let path = Path::new(data);
    let is_images = match format {
        Some(format) => format == DataFormat::Images,
        None => ImageFolder::open(path, MAX_BYTES).is_ok(),
    };
    if is_images {
        return (data.to_owned(), DataFormat::Images);
    }
    let inside = names_in(path);
    let mut known = inside.iter().filter_map(|name| Some((name, kind(name)?)));
    let found = match format {
        Some(format) => known.find(|(_, kind)| *kind == format),
        None => known.min_by_key(|(_, kind)| *kind == DataFormat::Text),
    };
    match found {
        Some((name, kind)) => {
            let (folder, end) = (data.trim_end_matches('/'), ending(name));
            (format!("{folder}/*{end}*"), kind)
        }
        None => (data.to_owned(), format.unwrap_or(DataFormat::Images)),
    }
}

/// The images of a folder; that some are left out is said.
fn images(context: &Context, data: &str) -> phalanx::Result<ImageFolder> {
    let folder = ImageFolder::open(data, MAX_BYTES)?;
    if let Some(warning) = left_out(&folder, Path::new(data)) {
        context.warn(&warning);
    }
    Ok(folder)
}

/// The names of the files in a folder, in their order.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    let mut names: Vec<String> = files
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

/// What files of the format of this one have in their names.
fn ending(name: &str) -> &str {
    let name = name.trim_end_matches(".gz");
    match name {
        name if name.contains("tfrecord") => "tfrecord",
        name => name.rfind(['.', '-']).map_or("", |at| &name[at..]),
    }
}

/// The format that the name of a file says.
fn kind(path: &str) -> Option<DataFormat> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let name = name.trim_end_matches(".gz");
    let ends = |end: &str| name.ends_with(end);
    match () {
        () if name.contains("tfrecord") => Some(DataFormat::Tfrecord),
        () if ends(".tar") => Some(DataFormat::Webdataset),
        () if ends(".csv") => Some(DataFormat::Csv),
        () if ends(".parquet") => Some(DataFormat::Parquet),
        () if ends("-ubyte") || ends(".idx") => Some(DataFormat::Idx),
        () if ends(".npy") || ends(".npz") => Some(DataFormat::Numpy),
        () if ends(".txt") => Some(DataFormat::Text),
        () => None,
    }
}

/// The items of a format: how long each is, once it is read, and what a line says of it.
pub(super) struct Items {
    /// What one is called, with an s for several.
    pub(super) unit: &'static str,
    pub(super) len: usize,
    pub(super) per_file: Vec<usize>,
    pub(super) lost: Vec<LostBytes>,
    pub(super) read: Box<dyn Fn(usize) -> phalanx::Result<u64>>,
    pub(super) describe: Box<dyn Fn(usize) -> phalanx::Result<String>>,
}

const EXAMPLES: &str = "examples";

impl Items {
    fn new<R: Records>(
        records: R,
        len: impl Fn(&R::Item) -> u64 + 'static,
        describe: impl Fn(&R::Item) -> String + 'static,
    ) -> Self {
        let records = Arc::new(records);
        let read = Arc::clone(&records);
        Self {
            unit: EXAMPLES,
            len: records.len(),
            per_file: records.per_file(),
            lost: records.lost(),
            read: Box::new(move |i| read.get(i).map(|item| len(&item))),
            describe: Box::new(move |i| records.get(i).map(|item| describe(&item))),
        }
    }

    /// What can be read of the files, whatever else is in them.
    fn open(context: &Context, data: &str, kind: DataFormat) -> phalanx::Result<Self> {
        let skipping = TfRecordOptions {
            corrupt: CorruptPolicy::Skip,
            ..TfRecordOptions::default()
        };
        Ok(match kind {
            DataFormat::Tfrecord => Self::new(
                TfRecords::open(data, &skipping)?,
                |record| record.len() as u64,
                |record| {
                    let opaque = |_| bytes(record.len() as u64);
                    Features::parse(record).map_or_else(opaque, |features| of_features(&features))
                },
            ),
            DataFormat::Webdataset => Self::new(
                WebDataset::open(data, MAX_BYTES)?,
                |sample| sample.fields.values().map(|value| value.len() as u64).sum(),
                |sample| {
                    let fields = sample.fields.iter();
                    let fields: Vec<String> = fields
                        .map(|(name, value)| format!("{name} ({})", bytes(value.len() as u64)))
                        .collect();
                    format!("{}: {}", sample.key, fields.join(", "))
                },
            ),
            DataFormat::Text => Self::new(
                TextLines::open(data, MAX_BYTES)?,
                |line| line.len() as u64,
                |line| shortened(line),
            ),
            DataFormat::Images => {
                let folder = images(context, data)?;
                let classes = folder.classes().to_vec();
                Self::new(
                    folder,
                    |image| image.bytes.len() as u64,
                    move |image| {
                        let len = bytes(image.bytes.len() as u64);
                        format!("{} ({len})", classes[image.class as usize])
                    },
                )
            }
            DataFormat::Csv => Self::of_csv(data)?,
            DataFormat::Parquet => Self::of_parquet(data)?,
            DataFormat::Idx => {
                Self::of_dataset(Dataset::from_arrays(read_idx(data, 1 << 32)?, Vec::new())?)
            }
            DataFormat::Numpy => data_numpy::items(data)?,
        })
    }

    /// Rows of numbers with a class, or else the fields of rows that a training file can make numbers of.
    fn of_csv(data: &str) -> phalanx::Result<Self> {
        let numbers = Dataset::from_csv(data, &csv_options());
        match numbers {
            Ok(numbers) => Ok(Self::of_dataset(numbers)),
            Err(error) => Ok(Self::of_fields(CsvFields::read(data).ok_or(error)?)),
        }
    }

    /// Rows of numbers, or else the fields of rows whose columns hold more.
    fn of_parquet(data: &str) -> phalanx::Result<Self> {
        let options = ParquetOptions {
            label: LabelColumn::None,
            ..ParquetOptions::default()
        };
        let of_numbers = Parquet::open(data, &options).and_then(|source| {
            let (per_file, rows) = (source.per_file(), Dataset::from_source(source));
            let first = (rows.len() > Some(0)).then(|| rows.get(0, 0)).transpose();
            first.map(|_| Self {
                per_file,
                ..Self::of_dataset(rows)
            })
        });
        match of_numbers {
            Err(Error::Data { .. }) => Ok(Self::of_fields(CsvFields::of_parquet(data)?)),
            of_numbers => of_numbers,
        }
    }

    fn of_fields(fields: CsvFields) -> Self {
        let fields = Arc::new(fields);
        let read = Arc::clone(&fields);
        Self {
            unit: EXAMPLES,
            len: fields.len(),
            per_file: Vec::new(),
            lost: Vec::new(),
            read: Box::new(move |i| Ok(read.bytes(i))),
            describe: Box::new(move |i| Ok(fields.row(i, shortened))),
        }
    }

    pub(super) fn of_dataset(data: Dataset) -> Self {
        let read = data.clone();
        let len = |example: &Example| {
            let tensors = example.x.iter().chain(&example.y);
            tensors.map(|tensor| tensor.bytes().len() as u64).sum()
        };
        Self {
            unit: EXAMPLES,
            len: data.len().unwrap_or(0),
            per_file: Vec::new(),
            lost: Vec::new(),
            read: Box::new(move |i| read.get(0, i).map(|example| len(&example))),
            describe: Box::new(move |i| data.get(0, i).map(|example| of_example(&example))),
        }
    }
}

fn of_example(example: &Example) -> String {
    let tensors = example.x.iter().chain(&example.y);
    let shown = tensors.map(|tensor| {
        let values = shortened(&format!("{:?}", tensor.to_f64()));
        format!("{} {values}", tensor.shape())
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn of_features(features: &Features) -> String {
    let shown = features.iter().map(|(name, feature)| {
        let values = match feature {
            Feature::Ints(values) => format!("{values:?}"),
            Feature::Floats(values) => format!("{values:?}"),
            Feature::Bytes(values) => {
                let total = values.iter().map(|value| value.len() as u64).sum();
                format!("({})", bytes(total))
            }
        };
        format!(
            "{name}: {} {} {}",
            feature.len(),
            feature.kind(),
            shortened(&values)
        )
    });
    shown.collect::<Vec<_>>().join(", ")
}

pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn inspect(
    context: &mut Context,
    data: &str,
    kind: DataFormat,
    rows: usize,
) -> Result<(), Failure> {
    let items = Items::open(context, data, kind).map_err(|error| failed(&error))?;
    let files = match items.per_file.len() {
        0 => String::new(),
        1 => " in 1 file".into(),
        files => format!(" in {files} files"),
    };
    context.output.line(format_args!(
        "{}: {} {}{files}",
        kind.name(),
        items.len,
        items.unit
    ))?;
    for lost in &items.lost {
        context.output.line(format_args!("  {lost}"))?;
    }
    let mut wrong = items.lost.len();
    for i in 0..rows.min(items.len) {
        let described = (items.describe)(i);
        wrong += usize::from(described.is_err());
        let text = described.unwrap_or_else(|error| error.to_string());
        context.output.line(format_args!("  {i}: {text}"))?;
    }
    if wrong == 0 {
        return Ok(());
    }
    let message = format!("{wrong} places of the data cannot be read");
    Err(Failure::new(Exit::Failed, message)
        .next("write the files again, or choose to skip corrupt records"))
}

/// The files that an earlier run wrote under this name, which are refused where they are not to be replaced: files of another number of
/// shards beside the new ones would be read with them.
fn shards_before(to: &Path, name: &str, overwrite: bool) -> Result<Vec<PathBuf>, Failure> {
    let names = names_in(to).into_iter();
    let old: Vec<String> = names.filter(|file| is_shard(file, name)).collect();
    if let (Some(first), false) = (old.first(), overwrite) {
        let message = format!(
            "{} has {} files of the name `{name}` already, as {first}",
            to.display(),
            old.len()
        );
        return Err(Failure::new(Exit::Usage, message)
            .next("choose another --to or --name, or replace them with --overwrite"));
    }
    Ok(old.into_iter().map(|file| to.join(file)).collect())
}

/// Whether a file is a shard of this name: `NAME-00000-of-00005.tfrecord`.
fn is_shard(file: &str, name: &str) -> bool {
    let numbers = file
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(".tfrecord"))
        .and_then(|rest| rest.split_once("-of-"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(shard, of)| is_number(shard) && is_number(of))
}

/// Writes an image folder or a CSV file as shards of `tf.train.Example`, item i in shard i modulo their number. They are written under
/// hidden names: where one fails none of them is left, and those that were to be replaced stay until all have their names.
fn shard(
    context: &mut Context,
    data: &str,
    (to, name, overwrite): (&Path, &str, bool),
    shards: usize,
) -> Result<(), Failure> {
    let (len, example) = examples(context, data).map_err(|error| failed(&error))?;
    let old = shards_before(to, name, overwrite)?;
    std::fs::create_dir_all(to).map_err(|error| not_done("make", to, &error))?;
    let hidden = |shard| shard_path(to, &format!(".{name}"), shard, shards);
    let forget = |shards: std::ops::Range<usize>| {
        for shard in shards {
            let _ = std::fs::remove_file(hidden(shard));
        }
    };
    for shard in 0..shards {
        let written = || -> phalanx::Result<()> {
            let mut writer = TfRecordWriter::create(hidden(shard))?;
            for i in (shard..len).step_by(shards) {
                writer.write(&example(i)?.to_bytes())?;
            }
            writer.finish().map(|_| ())
        };
        if let Err(error) = written() {
            forget(0..shard + 1);
            return Err(failed(&error));
        }
    }
    let new = Vec::from_iter((0..shards).map(|shard| shard_path(to, name, shard, shards)));
    for (shard, path) in new.iter().enumerate() {
        if let Err(error) = std::fs::rename(hidden(shard), path) {
            forget(shard..shards);
            return Err(not_done("write", path, &error));
        }
    }
    for path in old.iter().filter(|path| !new.contains(path)) {
        std::fs::remove_file(path).map_err(|error| not_done("remove", path, &error))?;
    }
    context.output.line(format_args!(
        "{len} examples in {shards} files in {}",
        to.display()
    ))
}

fn not_done(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("cannot {action} {}: {error}", path.display());
    Failure::new(Exit::Failed, message).next("choose another --to")
}

type ToFeatures = Box<dyn Fn(usize) -> phalanx::Result<Features>>;

fn examples(context: &Context, data: &str) -> phalanx::Result<(usize, ToFeatures)> {
    if Path::new(data).is_dir() {
        let folder = images(context, data)?;
        let len = folder.len();
        let example = move |i| {
            let EncodedImage { bytes, class } = folder.get(i)?;
            let text = folder.classes()[class as usize].clone().into_bytes();
            Ok(Features::new()
                .with_bytes("image/encoded", vec![bytes])
                .with_ints("image/class/label", vec![i64::from(class)])
                .with_bytes("image/class/text", vec![text]))
        };
        return Ok((len, Box::new(example)));
    }
    let rows = Dataset::from_csv(data, &csv_options())?;
    let len = rows.len().unwrap_or(0);
    let example = move |i| {
        let example = rows.get(0, i)?;
        let label = example
            .y
            .iter()
            .flat_map(phalanx::data::HostTensor::to_f64)
            .map(|y| y as i64);
        Ok(Features::new()
            .with_floats("features", example.x[0].f32s())
            .with_ints("label", label.collect()))
    };
    Ok((len, Box::new(example)))
}

fn bench(context: &mut Context, data: &str, kind: DataFormat, seconds: u32) -> Result<(), Failure> {
    let items = Items::open(context, data, kind).map_err(|error| failed(&error))?;
    for lost in &items.lost {
        context.output.line(lost)?;
    }
    let limit = Duration::from_secs(u64::from(seconds));
    let (start, mut read, mut total) = (Instant::now(), 0u64, 0);
    while items.len > 0 && start.elapsed() < limit {
        let len = (items.read)(read as usize % items.len);
        total += len.map_err(|error| failed(&error))?;
        read += 1;
    }
    let (elapsed, unit) = (start.elapsed().as_secs_f64(), items.unit);
    context.output.line(format_args!(
        "{read} {unit} in {elapsed:.1} s on one thread: {:.0} {unit}/s, {}/s",
        read as f64 / elapsed,
        bytes((total as f64 / elapsed) as u64)
    ))
}
