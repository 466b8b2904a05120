//! The paths of what a training file has read, which may be URLs of buckets.

use std::path::{Path, PathBuf};

use phalanx::data::BucketCopy;
use phalanx_yaml::Node;

use super::reader::text;
use super::{
    Data, ExampleFiles, ExampleTest, ImageTest, Located, ModelSource, Position, Problem, Test,
    TrainConfig, Validation,
};

/// A path to read: a relative one starts at the folder of the training file, and a URL stays as it is.
pub(super) fn path(node: &Node, folder: &Path) -> Option<PathBuf> {
    let written = Path::new(text(node)?);
    match BucketCopy::is_url(written) {
        true => Some(written.to_owned()),
        false => Some(folder.join(written)),
    }
}

/// Gives the path on this machine of one that is read at a place of the file.
type Localize<'a> = dyn FnMut(&Path, Position) -> Result<PathBuf, Problem> + 'a;

impl TrainConfig {
    /// Puts others in the place of the paths of the data.
    pub(crate) fn localize_data(&mut self, localize: &mut Localize<'_>) -> Result<(), Problem> {
        match &mut self.data {
            Data::Csv(csv) => {
                all(&mut csv.csv, localize)?;
                let tokenizers = csv
                    .text
                    .iter_mut()
                    .filter_map(|text| text.tokenizer.as_mut());
                for tokenizer in tokenizers {
                    one(tokenizer, localize)?;
                }
                if let Some(Located {
                    value: Test::Csv(files),
                    ..
                }) = &mut csv.test
                {
                    all(files, localize)?;
                }
            }
            Data::Images(images) => {
                one(&mut images.folder, localize)?;
                if let Some(Located {
                    value: ImageTest::Folder(folder),
                    at,
                }) = &mut images.test
                {
                    *folder = localize(folder, *at)?;
                }
            }
            Data::Examples(examples) => {
                files(&mut examples.files, examples.at, localize)?;
                if let Some(Located {
                    value: ExampleTest::Files(of_test),
                    at,
                }) = &mut examples.test
                {
                    files(of_test, *at, localize)?;
                }
            }
        }
        match &mut self.fit.validation {
            Some(Located {
                value: Validation::Csv(files),
                ..
            }) => all(files, localize),
            _ => Ok(()),
        }
    }

    /// Puts others in the place of the paths of the model and of the values that it begins with.
    pub(crate) fn localize_model(&mut self, localize: &mut Localize<'_>) -> Result<(), Problem> {
        if let ModelSource::Saved(file) = &mut self.model {
            one(file, localize)?;
        }
        match &mut self.first_weights {
            Some(weights) => one(&mut weights.file, localize),
            None => Ok(()),
        }
    }
}

fn one(path: &mut Located<PathBuf>, localize: &mut Localize<'_>) -> Result<(), Problem> {
    path.value = localize(&path.value, path.at)?;
    Ok(())
}

fn all(paths: &mut [Located<PathBuf>], localize: &mut Localize<'_>) -> Result<(), Problem> {
    paths.iter_mut().try_for_each(|path| one(path, localize))
}

fn files(
    files: &mut ExampleFiles,
    at: Position,
    localize: &mut Localize<'_>,
) -> Result<(), Problem> {
    match files {
        ExampleFiles::Idx {
            images: input,
            labels: label,
        }
        | ExampleFiles::Npy { input, label } => {
            for path in [input, label] {
                *path = localize(path, at)?;
            }
        }
        ExampleFiles::Npz { file, .. } => *file = localize(file, at)?,
        ExampleFiles::Tfds { folder, .. } => *folder = localize(folder, at)?,
        ExampleFiles::Cifar { pattern, .. }
        | ExampleFiles::TfRecord { pattern }
        | ExampleFiles::WebDataset { pattern }
        | ExampleFiles::Parquet { pattern } => {
            *pattern = localize(Path::new(pattern), at)?.display().to_string();
        }
    }
    Ok(())
}
