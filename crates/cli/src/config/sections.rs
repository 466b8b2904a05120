//! The sections of a `train.yaml`, read into their types.

use std::path::{Path, PathBuf};

use phalanx::config::{Family, Field};
use phalanx::nn::Policy;

use super::component::{Component, catalog};
use super::example_table::{PARQUET, PARQUET_TABLE, PARQUET_TEST};
use super::fit_table::{BATCH_SIZE, FIT};
use super::inputs::column;
use super::keras_compile::ANSWERED;
use super::labels;
use super::paths;
use super::reader::{Reader, Section, boolean, finite, list, text, whole};
use super::training_file::{self, CSV, FILE, TEST};
use super::{
    Cloud, Column, Csv, CsvOutput, Data, FirstWeights, Fit, Label, LabelType, Located, Missing,
    ModelSource, SaveFreq, Test, TrainConfig,
};
use phalanx_yaml::{Node, Value};
use phalanx_yaml::{Position, shown};

/// No class label is written with more digits than fit an i32.
const MAX_CLASS: i64 = i32::MAX as i64;

/// The values of a saved model, which its training begins with; a description of one has none.
fn saved_values(model: &ModelSource) -> Option<FirstWeights> {
    match model {
        ModelSource::Layers(_) => None,
        ModelSource::Saved(file) if file.value.extension().is_some_and(|it| it == "json") => None,
        ModelSource::Saved(file) => Some(FirstWeights {
            file: file.clone(),
            may_lack: false,
            frozen: Vec::new(),
        }),
    }
}

impl Reader {
    /// Reads the whole file; `None` or a non-empty list of problems where it is wrong.
    pub(crate) fn train_config(&mut self, root: &Node, origin: &Path) -> Option<TrainConfig> {
        let file = self.section(root, "the file", FILE)?;
        let folder = origin.parent().unwrap_or(Path::new(""));
        let data = file.node("data").and_then(|node| self.data(node, folder));
        let model = self.model(&file, folder);
        let first_weights = self.first_weights(&file, folder);
        let first_weights = first_weights.or_else(|| saved_values(model.as_ref()?));
        for name in ANSWERED {
            if let (None, Some(field)) = (file.node(name), file.field(name)) {
                self.lacks(&file, field);
            }
        }
        let optimizer = self.one(&file, "optimizer", Family::Optimizer);
        let named = data.as_ref().and_then(labels::outputs);
        let outputs = named.map_or(&[][..], |labels| &labels.value);
        let losses = self.losses(&file, outputs);
        let loss_weights = self.loss_weights(&file, outputs).unwrap_or_default();
        let [metrics, weighted_metrics] = ["metrics", "weighted_metrics"]
            .map(|name| self.metrics(&file, name, outputs).unwrap_or_default());
        let callbacks = self
            .list_of(&file, "callbacks", Family::Callback)
            .unwrap_or_default();
        let fit = match file.node("fit") {
            Some(node) => self.fit(node, folder),
            None => Some(Fit::default()),
        };
        let strategy = match file.node("strategy") {
            Some(node) => Some(self.component(node, Family::Strategy)?),
            None => None,
        };
        let output = self.value(&file, "output", |node| text(node).map(PathBuf::from));
        let output = output.unwrap_or_else(|| Path::new("runs").join(stem(origin)));
        let checkpoint = self.value(&file, "checkpoint", |node| text(node).map(PathBuf::from));
        let precision = self.precision(&file);
        let fit = fit?;
        let mut config = TrainConfig {
            loss_scale: self.loss_scale(&file),
            origin: origin.to_owned(),
            text: String::new(),
            overrides: Vec::new(),
            data: data?,
            data_text: data_text(root, fit.shuffle),
            model: model?,
            first_weights,
            optimizer: optimizer?,
            losses: losses?,
            loss_weights,
            metrics,
            weighted_metrics,
            fit,
            callbacks,
            precision: precision.unwrap_or_default(),
            strategy,
            output,
            checkpoint,
        };
        config.use_names_of_logs();
        self.check_together(&config);
        Some(config)
    }

    fn precision(&mut self, file: &Section<'_>) -> Option<Policy> {
        self.value(file, "precision", |node| {
            Policy::from_name(text(node)?).ok()
        })
    }

    /// Layers, or the path of a saved model.
    fn model(&mut self, file: &Section<'_>, folder: &Path) -> Option<ModelSource> {
        let node = file.node("model")?;
        let path = located(|node: &Node| paths::path(node, folder));
        // A layer by itself is meant to be one of a list.
        let is_layer = |name| {
            catalog(Family::Layer)
                .iter()
                .any(|known| known.name == name)
        };
        let is_path = text(node).is_some_and(|text| !is_layer(text));
        match path(node).filter(|_| is_path) {
            Some(file) => Some(ModelSource::Saved(file)),
            None => self
                .list_of(file, "model", Family::Layer)
                .map(ModelSource::Layers),
        }
    }

    fn one(&mut self, file: &Section<'_>, name: &str, family: Family) -> Option<Component> {
        let node = file.node(name)?;
        self.component(node, family)
    }

    /// Components of a list; a model has at least one layer.
    pub(super) fn list_of(
        &mut self,
        file: &Section<'_>,
        name: &str,
        family: Family,
    ) -> Option<Vec<Component>> {
        let node = file.node(name)?;
        match list(node) {
            Some(items) if file.allows_length(name, items.len()) => {
                Some(self.components(items, family))
            }
            _ => {
                self.unexpected(file, name, node);
                None
            }
        }
    }

    fn data(&mut self, node: &Node, folder: &Path) -> Option<Data> {
        if has_key(node, "image_folder") {
            return self.image_data(node, folder);
        }
        let mut of_tables = PARQUET_TABLE.iter();
        if has_key(node, "parquet") && of_tables.any(|key| has_key(node, key)) {
            return self.table_data(node, ("parquet", PARQUET, PARQUET_TEST), folder);
        }
        if let Some(examples) = self.example_data(node, folder) {
            return examples;
        }
        self.table_data(node, ("csv", CSV, TEST), folder)
    }

    /// The section `data` of tables, with the key that names the files, and the keys of its `test`.
    fn table_data(
        &mut self,
        node: &Node,
        (key, fields, test): (&str, &'static [Field], &'static [Field]),
        folder: &Path,
    ) -> Option<Data> {
        let section = self.section(node, "data", fields)?;
        let at = section.at;
        let csv = self.value(&section, key, |node| several(node, folder));
        let labels = self.csv_labels(&section);
        let label = self.value(&section, "label", located(label));
        let features = self.value(&section, "features", located(dims));
        let classes = self.value(&section, "classes", located(class_names));
        let one_hot = self.value(&section, "one_hot", located(columns));
        let inputs = self.csv_inputs(&section);
        let of_inputs = inputs.value.iter().flat_map(|input| &input.columns);
        let mut of_inputs: Vec<Column> = of_inputs.cloned().collect();
        let text = self.csv_texts(&section, folder);
        let category = self.csv_categories(&section);
        let window = self.csv_window(&section);
        if of_inputs.is_empty() {
            of_inputs.extend(text.iter().map(|text| text.column.value.clone()));
        }
        let test = section
            .node("test")
            .and_then(|node| self.test(node, (key, test), folder));
        let (delimiter, decimal) = self.csv_characters(&section);
        Some(Data::Csv(Csv {
            is_parquet: key == "parquet",
            header: self.value(&section, "header", header).unwrap_or_default(),
            label: label.unwrap_or_else(|| label_of(&labels)),
            label_type: self
                .value(&section, "label_type", label_type)
                .unwrap_or(LabelType::Class),
            labels,
            weight: self.value(&section, "weight", located(column)),
            delimiter,
            decimal,
            features: features.unwrap_or_else(|| nothing(at)),
            columns: self
                .value(&section, "columns", columns)
                .unwrap_or(of_inputs),
            inputs,
            text,
            window,
            category,
            one_hot: one_hot.unwrap_or_else(|| nothing(at)),
            classes: classes.unwrap_or_else(|| nothing(at)),
            skip_rows: self.value(&section, "skip_rows", rows).unwrap_or(0),
            missing: self
                .value(&section, "missing", missing)
                .unwrap_or(Missing::Fail),
            standardize: self
                .value(&section, "standardize", boolean)
                .unwrap_or(false),
            divide_by: self.value(&section, "divide_by", finite).unwrap_or(1.0),
            test,
            csv: csv?,
        }))
    }

    fn test(
        &mut self,
        node: &Node,
        (key, fields): (&str, &'static [Field]),
        folder: &Path,
    ) -> Option<Located<Test>> {
        let section = self.section(node, "test", fields)?;
        self.exactly_one(&section);
        let first = self.value(&section, "first", rows).map(Test::First);
        let last = self.value(&section, "last", rows).map(Test::Last);
        let csv = self
            .value(&section, key, |node| several(node, folder))
            .map(Test::Csv);
        let split = self.value(&section, "split", finite).map(Test::Split);
        let value = first.or(last).or(csv).or(split)?;
        Some(Located { value, at: node.at })
    }

    fn fit(&mut self, node: &Node, folder: &Path) -> Option<Fit> {
        if node.value == Value::Null {
            return Some(Fit::default());
        }
        let section = self.section(node, "fit", FIT)?;
        let default = Fit::default();
        let epochs = self.value(&section, "epochs", whole).map(as_usize);
        let (batch_size, is_per_replica) = self
            .batch_size(&section)
            .unwrap_or((default.batch_size, false));
        let steps = |node: &Node| whole(node).map(as_usize);
        let seed = self.value(&section, "seed", whole);
        Some(Fit {
            epochs: epochs.unwrap_or(default.epochs),
            batch_size,
            is_per_replica,
            steps_per_epoch: self.value(&section, "steps_per_epoch", steps),
            steps_per_execution: self
                .value(&section, "steps_per_execution", steps)
                .unwrap_or(default.steps_per_execution),
            shuffle: self
                .value(&section, "shuffle", boolean)
                .unwrap_or(default.shuffle),
            seed: seed.map_or(default.seed, i64::cast_unsigned),
            validation: self.validation(&section, folder),
            validation_steps: self.value(&section, "validation_steps", located(steps)),
            validation_freq: self
                .value(&section, "validation_freq", located(steps))
                .unwrap_or(default.validation_freq),
            keep_best: self.value(
                &section,
                "keep_best",
                located(|node| text(node).map(str::to_owned)),
            ),
            save_freq: self.value(&section, "save_freq", save_freq),
            keep_checkpoints: self
                .value(&section, "keep_checkpoints", steps)
                .unwrap_or(default.keep_checkpoints),
            preemption_notice: self.value(&section, "preemption_notice", cloud),
            tensorboard: self.tensorboard(&section),
            class_weight: self.class_weights(&section),
        })
    }

    /// The rows of a step, and whether they are for each replica.
    fn batch_size(&mut self, fit: &Section<'_>) -> Option<(usize, bool)> {
        let node = fit.node("batch_size")?;
        if !matches!(node.value, Value::Map(_)) {
            let rows = self.value(fit, "batch_size", whole)?;
            return Some((as_usize(rows), false));
        }
        let section = self.section(node, "batch_size", BATCH_SIZE)?;
        self.exactly_one(&section);
        let rows = self.value(&section, "per_replica", whole)?;
        Some((as_usize(rows), true))
    }

    fn class_weights(&mut self, fit: &Section<'_>) -> Option<Located<Vec<(i64, f32)>>> {
        let node = fit.node("class_weight")?;
        let Value::Map(entries) = &node.value else {
            self.unexpected(fit, "class_weight", node);
            return None;
        };
        let weights = entries.iter().filter_map(|(key, node)| {
            let (class, weight) = (class(&key.name), finite(node));
            if class.is_none() {
                let found = shown(&key.name);
                let message = format!("a class of class_weight is {found}, expected a whole number from 0, without signs and leading zeros");
                self.problem(key.at, message, "write for example `0: 1.5`");
            }
            let weight = weight.filter(|weight| (0.0..=1e30).contains(weight));
            if weight.is_none() {
                let (name, found) = (shown(&key.name), node.describe());
                let message = format!("the weight of class {name} is {found}, expected a number from 0 to 1e30");
                self.problem(node.at, message, "write for example `0: 1.5`");
            }
            Some((class?, weight? as f32))
        });
        let value = weights.collect();
        Some(Located { value, at: node.at })
    }

    /// Notes it where a section whose keys exclude one another holds none or several.
    pub(super) fn exactly_one(&mut self, section: &Section<'_>) {
        if section.len() != 1 {
            let names = section.names().join(", ");
            self.problem(
                section.at,
                format!(
                    "{} has {} keys, expected exactly one of {names}",
                    section.name(),
                    section.len()
                ),
                "keep or write one of them",
            );
        }
    }

    /// What makes no sense together.
    fn check_together(&mut self, config: &TrainConfig) {
        self.check_validation(config);
        self.check_loss_scale(config);
        self.check_mix(config);
        self.check_sources(config);
        if let Data::Csv(csv) = &config.data {
            self.check_inputs(csv);
            self.check_texts(csv);
            self.check_categories(csv);
            self.check_window(csv);
            self.check_weight(csv);
            let class_weight = config.fit.class_weight.as_ref().map(|weights| weights.at);
            self.check_label(csv, class_weight);
            self.check_labels(csv, class_weight);
        }
    }

    fn check_label(&mut self, csv: &Csv, class_weight: Option<Position>) {
        if let (
            Located {
                value: Label::Name(name),
                at,
            },
            Some(false),
        ) = (&csv.label, csv.header)
        {
            let message = format!(
                "`label` is the column named {}, and `header` is false",
                shown(name)
            );
            self.problem(
                *at,
                message,
                "give the position of the column, from 0, or set `header: true`",
            );
        }
        if !csv.one_hot.value.is_empty() && csv.divide_by != 1.0 {
            self.problem(
                csv.one_hot.at,
                "the features of `one_hot` are 0 or 1, and `divide_by` divides all features",
                "remove `divide_by`; `standardize: true` brings numbers into the range of these features and leaves them alone",
            );
        }
        if !csv.classes.value.is_empty() && csv.label_type == LabelType::Value {
            self.problem(
                csv.classes.at,
                "`classes` names classes, and `label_type` is value",
                "remove it, or set `label_type: class`",
            );
        }
        if let (Some(at), LabelType::Value) = (class_weight, csv.label_type) {
            self.problem(
                at,
                "`class_weight` weighs classes, and `label_type` is value",
                "remove it, or set `label_type: class`",
            );
        }
    }
}

impl Default for Fit {
    fn default() -> Self {
        Self {
            epochs: 1,
            batch_size: 32,
            is_per_replica: false,
            steps_per_epoch: None,
            steps_per_execution: 1,
            shuffle: true,
            seed: 0,
            validation: None,
            validation_steps: None,
            validation_freq: Located {
                value: 1,
                at: Position::START,
            },
            keep_best: None,
            save_freq: None,
            keep_checkpoints: 2,
            preemption_notice: None,
            tensorboard: None,
            class_weight: None,
        }
    }
}

/// The label where the file says none: the last column, unless outputs have labels.
fn label_of(labels: &Located<Vec<CsvOutput>>) -> Located<Label> {
    let value = match labels.value.is_empty() {
        true => Label::Last,
        false => Label::None,
    };
    Located {
        value,
        at: labels.at,
    }
}

/// A list that was left out of a section at this place.
const fn nothing<T>(at: Position) -> Located<Vec<T>> {
    Located {
        value: Vec::new(),
        at,
    }
}

pub(super) fn has_key(node: &Node, name: &str) -> bool {
    matches!(&node.value, Value::Map(entries) if entries.iter().any(|(key, _)| key.name == name))
}

/// The name of the run of a file.
fn stem(origin: &Path) -> PathBuf {
    origin
        .file_stem()
        .map_or_else(|| "train".into(), PathBuf::from)
}

/// A reader of values that keeps the place.
pub(super) fn located<T>(
    read: impl Fn(&Node) -> Option<T>,
) -> impl Fn(&Node) -> Option<Located<T>> {
    move |node| {
        let at: Position = node.at;
        read(node).map(|value| Located { value, at })
    }
}

pub(super) fn several(node: &Node, folder: &Path) -> Option<Vec<Located<PathBuf>>> {
    let path = |node: &Node| {
        let value = paths::path(node, folder)?;
        Some(Located { value, at: node.at })
    };
    match list(node) {
        Some([]) => None,
        Some(items) => items.iter().map(path).collect(),
        None => Some(vec![path(node)?]),
    }
}

fn save_freq(node: &Node) -> Option<SaveFreq> {
    match text(node) {
        Some("epoch") => Some(SaveFreq::Epoch),
        _ => whole(node).map(|batches| SaveFreq::Batches(as_usize(batches))),
    }
}

fn cloud(node: &Node) -> Option<Cloud> {
    text(node).and_then(Cloud::named)
}

/// `Some(None)` is auto.
fn header(node: &Node) -> Option<Option<bool>> {
    match text(node) {
        Some("auto") => Some(None),
        _ => boolean(node).map(Some),
    }
}

pub(super) fn label(node: &Node) -> Option<Label> {
    match &node.value {
        Value::Int(-1) => Some(Label::Last),
        Value::Int(index) => usize::try_from(*index).ok().map(Label::Index),
        _ => text(node).map(|name| Label::Name(name.to_owned())),
    }
}

pub(super) fn label_type(node: &Node) -> Option<LabelType> {
    match text(node)? {
        "class" => Some(LabelType::Class),
        "value" => Some(LabelType::Value),
        _ => None,
    }
}

fn columns(node: &Node) -> Option<Vec<Column>> {
    list(node)?.iter().map(column).collect()
}

/// Names of classes, each once.
fn class_names(node: &Node) -> Option<Vec<String>> {
    let name = |node: &Node| match &node.value {
        Value::Int(number) => Some(number.to_string()),
        _ => text(node).map(str::to_owned),
    };
    let names: Vec<String> = list(node)?.iter().map(name).collect::<Option<_>>()?;
    let different: std::collections::HashSet<&String> = names.iter().collect();
    (different.len() == names.len()).then_some(names)
}

fn missing(node: &Node) -> Option<Missing> {
    match text(node) {
        Some("fail") => Some(Missing::Fail),
        Some("drop") => Some(Missing::Drop),
        Some("mean") => Some(Missing::Mean),
        Some(_) => None,
        None => finite(node).map(Missing::Number),
    }
}

pub(super) fn dims(node: &Node) -> Option<Vec<usize>> {
    let dims = list(node)?.iter().map(|item| whole(item).map(as_usize));
    let dims: Vec<usize> = dims.collect::<Option<_>>()?;
    let product = dims
        .iter()
        .try_fold(1, |product: usize, dim| product.checked_mul(*dim))?;
    (product <= training_file::MAX_FEATURES as usize).then_some(dims)
}

fn rows(node: &Node) -> Option<usize> {
    whole(node).map(as_usize)
}

/// `00` and `+0` are refused: they are other keys than `0`, and the same class.
fn class(key: &str) -> Option<i64> {
    let digits = key.bytes().all(|byte| byte.is_ascii_digit());
    let plain = digits && (key == "0" || !key.starts_with('0'));
    let class = key.parse().ok().filter(|_| plain)?;
    (0..=MAX_CLASS).contains(&class).then_some(class)
}

/// Of a number that was found to be at least 0.
pub(super) fn as_usize(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// The data section, the validation, the shuffling, and the weights of classes where there are some.
fn data_text(root: &Node, shuffle: bool) -> String {
    let of_fit = |name| root.entry("fit").and_then(|fit| fit.entry(name));
    let parts = [root.entry("data"), of_fit("validation")].map(|node| node.map(Node::canonical));
    let weights = of_fit("class_weight").map(Node::canonical);
    let weights = weights.map_or_else(String::new, |weights| format!(" {weights:?}"));
    format!("{parts:?} {shuffle}{weights}")
}
