//! The section `data` of files that hold examples: IDX (MNIST), CIFAR and TFRecord.

use std::path::{Path, PathBuf};

use phalanx::config::Field;
use phalanx::data::Cifar;

use super::example_table::{CIFAR, CIFAR_TEST, IDX, IDX_FILES, IDX_TEST, TFRECORD, TFRECORD_TEST};
use super::reader::{Reader, Section, finite, text};
use super::sections::{dims, has_key, label_type, located};
use super::{Data, ExampleFiles, ExampleTest, Examples, LabelType, Located, TfFeatures};
use phalanx_yaml::Node;

/// The kinds of files: the key that names them, the keys of `data`, and the keys of its `test`.
const KINDS: [(&str, &[Field], &[Field]); 4] = [
    ("idx", IDX, IDX_TEST),
    ("cifar10", CIFAR[0], CIFAR_TEST[0]),
    ("cifar100", CIFAR[1], CIFAR_TEST[1]),
    ("tfrecord", TFRECORD, TFRECORD_TEST),
];

impl Reader {
    /// The section `data` of files of examples, where it is one.
    pub(super) fn example_data(&mut self, node: &Node, folder: &Path) -> Option<Option<Data>> {
        let (key, fields, test) = KINDS.into_iter().find(|(key, ..)| has_key(node, key))?;
        let section = self.section(node, "data", fields)?;
        let files = self.example_files(&section, key, folder);
        let features = self.value(&section, "features", located(dims));
        let divide_by = self.value(&section, "divide_by", finite).unwrap_or(1.0);
        let label_type = self.value(&section, "label_type", label_type);
        let mut name = |key| self.value(&section, key, |node| text(node).map(str::to_owned));
        let names = (key == "tfrecord").then(|| TfFeatures {
            input: name("input").unwrap_or_else(|| "image".into()),
            label: name("label").unwrap_or_else(|| "label".into()),
        });
        let test = section
            .node("test")
            .and_then(|node| self.example_test(node, key, test, folder));
        Some(files.map(|files| {
            Data::Examples(Examples {
                files,
                at: section.at,
                names,
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

    fn example_files(
        &mut self,
        section: &Section<'_>,
        key: &str,
        folder: &Path,
    ) -> Option<ExampleFiles> {
        let pattern = |node: &Node| text(node).map(|path| folder.join(path).display().to_string());
        match key {
            "idx" => {
                let files = self.section(section.node("idx")?, "idx", IDX_FILES)?;
                let mut path = |name| {
                    let path = |node: &Node| text(node).map(|path| folder.join(path));
                    self.value(&files, name, path)
                };
                let (images, labels): (Option<PathBuf>, _) = (path("images"), path("labels"));
                Some(ExampleFiles::Idx {
                    images: images?,
                    labels: labels?,
                })
            }
            "tfrecord" => {
                let pattern = self.value(section, key, pattern)?;
                Some(ExampleFiles::TfRecord { pattern })
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
