//! The section `data` of files that hold examples: IDX (MNIST), NumPy, CIFAR, TFRecord, TensorFlow Datasets, WebDataset and Parquet.

use std::path::{Path, PathBuf};

use phalanx::config::Field;
use phalanx::data::Cifar;

use super::example_table::{
    CIFAR, CIFAR_TEST, IDX, IDX_FILES, IDX_TEST, NUMPY, NUMPY_ARRAYS, NUMPY_TEST, PARQUET,
    PARQUET_TEST, TFDS, TFDS_FOLDER, TFDS_TEST, TFRECORD, TFRECORD_TEST, WEBDATASET,
    WEBDATASET_TEST,
};
use super::images::corrupt;
use super::paths;
use super::reader::{Reader, Section, finite, list, text};
use super::sections::{dims, has_key, label, label_type, located};
use super::{
    Data, ExampleFiles, ExampleParts, ExampleTest, Examples, ImageSettings, Label, LabelType,
    Located,
};
use phalanx_yaml::Node;

/// The kinds of files: the key that names them, the keys of `data`, and the keys of its `test`.
const KINDS: [(&str, &[Field], &[Field]); 8] = [
    ("idx", IDX, IDX_TEST),
    ("numpy", NUMPY, NUMPY_TEST),
    ("cifar10", CIFAR[0], CIFAR_TEST[0]),
    ("cifar100", CIFAR[1], CIFAR_TEST[1]),
    ("tfrecord", TFRECORD, TFRECORD_TEST),
    ("tfds", TFDS, TFDS_TEST),
    ("webdataset", WEBDATASET, WEBDATASET_TEST),
    ("parquet", PARQUET, PARQUET_TEST),
];

/// Keys of examples that are numbers, and of those that are images.
const OF_NUMBERS: [&str; 2] = ["features", "divide_by"];
const OF_IMAGES: [&str; 2] = ["scale", "augment"];

impl Reader {
    /// The section `data` of files of examples, where it is one.
    pub(super) fn example_data(&mut self, node: &Node, folder: &Path) -> Option<Option<Data>> {
        let (key, fields, test) = KINDS.into_iter().find(|(key, ..)| has_key(node, key))?;
        let section = self.section(node, "data", fields)?;
        let files = self.example_files(&section, key, folder);
        let features = self.value(&section, "features", located(dims));
        let divide_by = self.value(&section, "divide_by", finite).unwrap_or(1.0);
        let label_type = self.value(&section, "label_type", label_type);
        let parts = self.example_parts(&section, key);
        let images = self.example_images(&section, key, label_type);
        let corrupt = self.value(&section, "corrupt", corrupt).unwrap_or_default();
        let test = section
            .node("test")
            .and_then(|node| self.example_test(node, key, test, folder));
        Some(files.zip(images).map(|(files, images)| {
            Data::Examples(Examples {
                files,
                at: section.at,
                parts,
                images,
                corrupt,
                features: features.unwrap_or(Located {
                    value: Vec::new(),
                    at: section.at,
                }),
                label_type: label_type.unwrap_or(LabelType::Class),
                divide_by,
                test,
            })
        }))
    }

    fn example_parts(&mut self, section: &Section<'_>, key: &str) -> ExampleParts {
        let mut name = |key, default: &str| {
            let name = self.value(section, key, |node| text(node).map(str::to_owned));
            name.unwrap_or_else(|| default.to_owned())
        };
        match key {
            "tfrecord" | "tfds" if section.node("inputs").is_some() => {
                let label = name("label", "label");
                let none = Located {
                    value: Vec::new(),
                    at: section.at,
                };
                let inputs = self.feature_inputs(section).unwrap_or(none);
                ExampleParts::Inputs { inputs, label }
            }
            "tfrecord" => ExampleParts::Named {
                input: name("input", "image"),
                label: name("label", "label"),
            },
            "tfds" => {
                let mut name = |key| self.value(section, key, |node| text(node).map(str::to_owned));
                ExampleParts::Supervised {
                    input: name("input"),
                    label: name("label"),
                }
            }
            // Names of members differ by case in no file system that matters; the reader has them in lower case.
            "webdataset" => ExampleParts::Named {
                input: name("input", "jpg").to_lowercase(),
                label: name("label", "cls").to_lowercase(),
            },
            "parquet" => {
                let names = |node: &Node| {
                    let names = list(node)?.iter().map(|item| text(item).map(str::to_owned));
                    names.collect::<Option<Vec<String>>>()
                };
                ExampleParts::Columns {
                    columns: self.value(section, "columns", names).unwrap_or_default(),
                    label: self.value(section, "label", label).unwrap_or(Label::Last),
                }
            }
            _ => ExampleParts::All,
        }
    }

    /// How images become examples, where the input is one; `None` for a mistake.
    fn example_images(
        &mut self,
        section: &Section<'_>,
        key: &str,
        label_type: Option<LabelType>,
    ) -> Option<Option<ImageSettings>> {
        if section.node("image_size").is_none() {
            for (name, node) in OF_IMAGES.map(|name| (name, section.node(name))) {
                let Some(node) = node else { continue };
                let message = format!("`{name}` is about images, and data has no `image_size`");
                self.problem(node.at, message, "add `image_size: [96, 96]`, or remove it");
            }
            return (key != "webdataset").then_some(None);
        }
        for (name, node) in OF_NUMBERS.map(|name| (name, section.node(name))) {
            let Some(node) = node else { continue };
            let message = format!(
                "`{name}` is about numbers, and `image_size` says that the input is an image"
            );
            self.problem(
                node.at,
                message,
                "remove it; `scale` says what bytes become",
            );
        }
        if label_type == Some(LabelType::Value)
            && let Some(node) = section.node("label_type")
        {
            let message = "`label_type` is value, and images have classes";
            self.problem(
                node.at,
                message,
                "remove it, or write the pixels as numbers",
            );
        }
        self.image_settings(section).map(Some)
    }

    fn example_files(
        &mut self,
        section: &Section<'_>,
        key: &str,
        folder: &Path,
    ) -> Option<ExampleFiles> {
        let pattern = |node: &Node| Some(paths::path(node, folder)?.display().to_string());
        match key {
            "idx" => {
                let files = self.section(section.node("idx")?, "idx", IDX_FILES)?;
                let mut path = |name| {
                    let path = |node: &Node| paths::path(node, folder);
                    self.value(&files, name, path)
                };
                let (images, labels): (Option<PathBuf>, _) = (path("images"), path("labels"));
                Some(ExampleFiles::Idx {
                    images: images?,
                    labels: labels?,
                })
            }
            "numpy" => self.numpy_arrays(section.node("numpy")?, folder),
            "tfrecord" => {
                let pattern = self.value(section, key, pattern)?;
                Some(ExampleFiles::TfRecord { pattern })
            }
            "tfds" => {
                let files = self.section(section.node("tfds")?, "tfds", TFDS_FOLDER)?;
                let folder = self.value(&files, "folder", |node| paths::path(node, folder));
                let split = self.value(&files, "split", |node| text(node).map(str::to_owned));
                Some(ExampleFiles::Tfds {
                    folder: folder?,
                    split: split.unwrap_or_else(|| "train".to_owned()),
                    opened: None,
                })
            }
            "webdataset" => {
                let pattern = self.value(section, key, pattern)?;
                Some(ExampleFiles::WebDataset { pattern })
            }
            "parquet" => {
                let pattern = self.value(section, key, pattern)?;
                Some(ExampleFiles::Parquet { pattern })
            }
            _ => {
                let version = match key {
                    "cifar10" => Cifar::Ten,
                    _ => Cifar::HundredFine,
                };
                let pattern = self.value(section, key, pattern)?;
                Some(ExampleFiles::Cifar { pattern, version })
            }
        }
    }

    /// Arrays by their names in an archive, or each a file.
    fn numpy_arrays(&mut self, node: &Node, folder: &Path) -> Option<ExampleFiles> {
        let arrays = self.section(node, "numpy", NUMPY_ARRAYS)?;
        let path = |node: &Node| paths::path(node, folder);
        if arrays.node("file").is_some() {
            let name = |node: &Node| text(node).map(str::to_owned);
            let file = self.value(&arrays, "file", path);
            let (input, label) = (
                self.value(&arrays, "input", name),
                self.value(&arrays, "label", name),
            );
            return Some(ExampleFiles::Npz {
                file: file?,
                input: input?,
                label: label?,
            });
        }
        let (input, label) = (
            self.value(&arrays, "input", path),
            self.value(&arrays, "label", path),
        );
        Some(ExampleFiles::Npy {
            input: input?,
            label: label?,
        })
    }

    fn example_test(
        &mut self,
        node: &Node,
        key: &str,
        fields: &'static [Field],
        folder: &Path,
    ) -> Option<Located<ExampleTest>> {
        let section = self.section(node, "test", fields)?;
        self.exactly_one(&section);
        let split = self
            .value(&section, "split", finite)
            .map(ExampleTest::Split);
        let files = match section.node(key) {
            Some(_) => self
                .example_files(&section, key, folder)
                .map(ExampleTest::Files),
            None => None,
        };
        let value = split.or(files)?;
        Some(Located { value, at: node.at })
    }
}
