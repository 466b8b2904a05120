//! The images that a `train.yaml` speaks of, as examples.

use std::path::Path;

use phalanx::data::{
    Batch, Batches, CorruptPolicy, Dataset, HostTensor, ImageFolder, Records, cut_mix, mix_up,
};
use phalanx::image::ImagePipeline;
use phalanx::{Error, Result as Read};

use crate::config::{
    ImageSettings, ImageTest, Images, Located, Mix, Position, Problem, TrainConfig, Validation,
};
use crate::data_facts::Facts;
use crate::rows::{Rows, prepared};
use crate::split::check_test;

/// The most bytes of an image file.
pub(crate) const MAX_BYTES: u64 = 1 << 28;

/// The images of a folder, with augmentation for those to train on.
pub(crate) fn read(
    config: &TrainConfig,
    images: &Images,
    known: Option<&Facts>,
) -> Result<Rows, Problem> {
    let at = images.folder.at;
    let seed = config.fit.seed;
    let Parts {
        train,
        validation,
        test,
        count,
        warnings,
    } = parts(config, images, known)?;
    if let Some(known) = known {
        check_classes(&images.folder.value, train.classes(), &known.classes)
            .map_err(wrong_at(at))?;
    }
    let facts = Facts {
        dims: images.settings.plan.dims().to_vec(),
        classes: train.classes().to_vec(),
        examples: Some(count),
        ..Facts::default()
    };
    let fixed = images.settings.plan.without_augmentation();
    let to_measure = |folder: Option<ImageFolder>| {
        let measured = folder.map(|folder| dataset(&folder, images, &fixed, seed));
        measured.transpose().map_err(wrong_at(at))
    };
    let train = dataset(&train, images, &images.settings.plan, seed).map_err(wrong_at(at))?;
    Ok(Rows {
        train: prepared(config, &train)?,
        validation: to_measure(validation)?,
        test: to_measure(test)?,
        plain: train,
        dropped: 0,
        facts,
        warnings,
    })
}

struct Parts {
    train: ImageFolder,
    validation: Option<ImageFolder>,
    test: Option<ImageFolder>,
    /// The images before a part was held out.
    count: usize,
    warnings: Vec<String>,
}

/// What is to be said of the images of a folder that are left out.
pub(crate) fn left_out(folder: &ImageFolder, path: &Path) -> Option<String> {
    let count = folder.left_out();
    (count > 0).then(|| {
        format!(
            "{count} images below {} are left out: their names end like formats that are not read; convert them to png, jpg or webp",
            path.display()
        )
    })
}

fn parts(config: &TrainConfig, images: &Images, known: Option<&Facts>) -> Result<Parts, Problem> {
    let at = images.folder.at;
    let seed = config.fit.seed;
    let whole = ImageFolder::open(&images.folder.value, MAX_BYTES).map_err(wrong_at(at))?;
    let count = whole.len();
    check_test(config, known, Some(count))?;
    let mut warnings = Vec::from_iter(left_out(&whole, &images.folder.value));
    let (rest, test) = match &images.test {
        None => (whole, None),
        Some(Located {
            value: ImageTest::Split(fraction),
            at,
        }) => split(&whole, *fraction, seed, *at)?,
        Some(Located {
            value: ImageTest::Folder(path),
            at,
        }) => {
            let test = with_classes_of(&whole, path).map_err(wrong_at(*at))?;
            warnings.extend(left_out(&test, path));
            (whole, Some(test))
        }
    };
    let (train, validation) = match &config.fit.validation {
        None => (rest, None),
        Some(Located {
            value: Validation::Test,
            ..
        }) => (rest, test.clone()),
        Some(Located {
            value: Validation::Split(fraction),
            at,
        }) => split(&rest, *fraction, seed, *at)?,
        Some(Located { at, .. }) => {
            let message = "the validation of a folder of images is a part of it, or its test";
            let next = "write `validation: {split: 0.1}`";
            return Err(Problem::new(*at, message, next));
        }
    };
    Ok(Parts {
        train,
        validation,
        test,
        count,
        warnings,
    })
}

/// Batches of which the images are mixed as the file says, and made ahead on all processors; `classes` of the model.
pub(crate) fn to_train(
    images: &ImageSettings,
    seed: u64,
    classes: usize,
    batches: &Batches,
) -> Batches {
    let mixed = match images.mix {
        None => batches.clone(),
        Some(Located {
            value: Mix::Up(alpha),
            ..
        }) => batches.map_random(seed, move |key, batch| mix_up(key, &batch, classes, alpha)),
        Some(Located {
            value: Mix::Cut(alpha),
            ..
        }) => batches.map_random(seed, move |key, batch| cut_mix(key, &batch, classes, alpha)),
    };
    mixed.autotune()
}

/// Batches made ahead on all processors; with labels as shares of classes where the training mixes them.
pub(crate) fn to_measure(images: &ImageSettings, classes: usize, batches: &Batches) -> Batches {
    let batches = match images.mix {
        None => batches.clone(),
        Some(_) => batches.map(move |batch| as_shares(batch, classes)),
    };
    batches.autotune()
}

/// Labels of classes as `[rows, classes]`: 1 for the class, 0 for the others.
fn as_shares(batch: Batch, classes: usize) -> Read<Batch> {
    let labels = batch.y.first().and_then(HostTensor::values::<i32>);
    let labels = labels.unwrap_or_default();
    let mut shares = vec![0.0f32; labels.len() * classes];
    for (row, &class) in shares.chunks_exact_mut(classes.max(1)).zip(&labels) {
        let share = usize::try_from(class)
            .ok()
            .and_then(|class| row.get_mut(class));
        *share.ok_or_else(|| {
            Error::User(format!(
                "an image has class {class}, and the model tells {classes}; give the last layer more units"
            ))
        })? = 1.0;
    }
    Ok(Batch {
        y: vec![HostTensor::new([labels.len(), classes], &shares)],
        ..batch
    })
}

/// The images of a folder with a folder for each class; the classes are the training's, where they are known.
///
/// # Errors
/// A folder that cannot be read, or has other classes.
pub(crate) fn labelled(
    images: &Images,
    facts: &Facts,
    path: &Path,
    warn: impl Fn(String),
) -> Read<Dataset> {
    let folder = ImageFolder::open(path, MAX_BYTES)?;
    left_out(&folder, path).into_iter().for_each(warn);
    if !facts.classes.is_empty() {
        check_classes(path, folder.classes(), &facts.classes)?;
    }
    dataset(
        &folder,
        images,
        &images.settings.plan.without_augmentation(),
        0,
    )
}

/// All images below a folder and their paths in it, in the order of these; one that cannot be read is an error, so that each has
/// a prediction.
///
/// # Errors
/// A folder that cannot be read, or has no image.
pub(crate) fn to_predict(
    images: &Images,
    path: &Path,
    warn: impl Fn(String),
) -> Read<(Dataset, Vec<String>)> {
    let folder = ImageFolder::unlabelled(path, MAX_BYTES)?;
    left_out(&folder, path).into_iter().for_each(warn);
    named(&folder, images, path)
}

/// The images of the test, as [`to_predict`]; nothing where there is no test.
///
/// # Errors
/// Folders that cannot be read, or not be divided.
pub(crate) fn test_to_predict(
    config: &TrainConfig,
    images: &Images,
    known: Option<&Facts>,
) -> Result<Option<(Dataset, Vec<String>)>, Problem> {
    let (root, at) = match &images.test {
        Some(Located {
            value: ImageTest::Folder(path),
            at,
        }) => (path, *at),
        _ => (&images.folder.value, images.folder.at),
    };
    let test = parts(config, images, known)?.test;
    let test = test.map(|folder| named(&folder, images, root));
    test.transpose().map_err(wrong_at(at))
}

fn named(folder: &ImageFolder, images: &Images, root: &Path) -> Read<(Dataset, Vec<String>)> {
    let name = |path: &Path| {
        path.strip_prefix(root)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let names = folder.images().iter().map(|(path, _)| name(path)).collect();
    Ok((
        folder.dataset(&images.settings.plan.without_augmentation(), 0)?,
        names,
    ))
}

fn wrong_at(at: Position) -> impl Fn(Error) -> Problem {
    move |error| {
        let next = "correct the path, or what `data` says";
        Problem::new(at, error.to_string(), next)
    }
}

fn split(
    folder: &ImageFolder,
    fraction: f64,
    seed: u64,
    at: Position,
) -> Result<(ImageFolder, Option<ImageFolder>), Problem> {
    let parts = folder.validation_split(fraction, seed);
    let (rest, held) =
        parts.map_err(|error| Problem::new(at, error.to_string(), "change the fraction"))?;
    Ok((rest, Some(held)))
}

fn with_classes_of(trained: &ImageFolder, path: &Path) -> Read<ImageFolder> {
    let folder = ImageFolder::open(path, MAX_BYTES)?;
    check_classes(path, folder.classes(), trained.classes())?;
    Ok(folder)
}

fn check_classes(path: &Path, classes: &[String], trained: &[String]) -> Read<()> {
    if classes == trained {
        return Ok(());
    }
    Err(Error::User(format!(
        "the classes of {} are {}, expected the training's, {}; give it a folder of the same name for each, empty where it has no image",
        path.display(),
        names(classes),
        names(trained)
    )))
}

/// The first of them, and how many there are.
fn names(classes: &[String]) -> String {
    const MOST: usize = 20;
    let shown = classes[..classes.len().min(MOST)].join(", ");
    match classes.len() {
        count if count > MOST => format!("{shown}, .. ({count})"),
        _ => shown,
    }
}

fn dataset(
    folder: &ImageFolder,
    images: &Images,
    plan: &ImagePipeline,
    seed: u64,
) -> Read<Dataset> {
    let dataset = folder.dataset(plan, seed)?;
    Ok(match images.settings.corrupt {
        CorruptPolicy::Fail => dataset,
        CorruptPolicy::Skip => dataset.skip_corrupt(),
    })
}
