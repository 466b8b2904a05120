//! The tables of `docs/train-yaml.md`, written between the marks `<!-- table: NAME -->` and `<!-- end -->` of the page.

use std::fmt::Write;

use phalanx::components::components;
use phalanx::config::{DefaultValue, Description, Family, Field, Setting};
use serde_json::Value as Json;

use super::bins::{self, NUM_BINS};
use super::inputs::OF_LAYERS;
use super::{
    aliases, categories, example_table, feature_inputs, fine_tune, fit_table, loss_scale, texts,
    training_file, windows,
};

const START: &str = "<!-- table: ";
const END: &str = "<!-- end -->";

/// The page with its tables written anew; the text between them stays.
///
/// # Errors
/// A mark without an end, or with a name that is no table.
pub fn with_tables(page: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(text, "{line}");
        let Some(name) = line.strip_prefix(START) else {
            continue;
        };
        let name = name.trim_end_matches(" -->");
        let body = written(name).ok_or_else(|| format!("there is no table {name:?}"))?;
        let _ = writeln!(text, "{body}\n{END}");
        if !lines.any(|line| line == END) {
            return Err(format!("table {name:?} has no {END:?}"));
        }
    }
    Ok(text)
}

/// A table by its name in the page.
fn written(name: &str) -> Option<String> {
    let section = match name {
        "file" => training_file::FILE,
        "fine_tune" => fine_tune::FINE_TUNE,
        "csv" => training_file::CSV,
        "test" => training_file::TEST,
        "text" => texts::TEXT,
        "category" => categories::CATEGORY,
        "window" => windows::WINDOW,
        "images" => training_file::IMAGES,
        "scale" => training_file::STANDARD,
        "augment" => training_file::AUGMENT,
        "image test" => training_file::IMAGE_TEST,
        "idx" => example_table::IDX,
        "idx files" => example_table::IDX_FILES,
        "idx test" => example_table::IDX_TEST,
        "numpy" => example_table::NUMPY,
        "numpy arrays" => example_table::NUMPY_ARRAYS,
        "cifar10" => example_table::CIFAR[0],
        "cifar100" => example_table::CIFAR[1],
        "tfrecord" => example_table::TFRECORD,
        "tfrecord test" => example_table::TFRECORD_TEST,
        "tfrecord sequence" => feature_inputs::SEQUENCE,
        "tfds" => example_table::TFDS,
        "tfds folder" => example_table::TFDS_FOLDER,
        "webdataset" => example_table::WEBDATASET,
        "parquet" => example_table::PARQUET,
        "fit" => fit_table::FIT,
        "validation" => fit_table::VALIDATION,
        "tensorboard" => fit_table::TENSORBOARD,
        "loss_scale" => loss_scale::LOSS_SCALE,
        "spellings" => return Some(spellings()),
        "every layer" => return Some(every_layer()),
        _ => return family(name).map(|family| listed(family, &components(family))),
    };
    Some(keys(section))
}

fn family(many: &str) -> Option<Family> {
    Family::ALL.into_iter().find(|family| family.many() == many)
}

/// A row for each key of a section.
fn keys(fields: &[Field]) -> String {
    let mut text = "| key | value | default | meaning |\n|---|---|---|---|".to_owned();
    for field in fields {
        let (name, words, doc) = (field.name, cell(&field.kind.words()), cell(field.doc));
        let default = match field.default {
            DefaultValue::Required => "required".to_owned(),
            DefaultValue::Own => String::new(),
            DefaultValue::Value(value) => format!("`{value}`"),
            DefaultValue::Words(words) => words.to_owned(),
        };
        let _ = write!(text, "\n| `{name}` | {words} | {default} | {doc} |");
    }
    text
}

/// A row for each component, then one for each of its own settings.
fn listed(family: Family, all: &[Description]) -> String {
    let shared = shared(family, all);
    let mut text =
        "| name | setting | value | default | meaning |\n|---|---|---|---|---|".to_owned();
    for component in all {
        let doc = cell(component.doc);
        let _ = write!(text, "\n| **`{}`** | | | | {doc} |", component.name);
        let own = component.settings.iter();
        for setting in own.filter(|setting| !shared.contains(&setting.field.name)) {
            let _ = write!(text, "\n| {}", row(setting));
        }
        if family == Family::Layer && component.name == bins::LAYER {
            let setting = Setting {
                field: NUM_BINS,
                default: Json::Null,
            };
            let _ = write!(text, "\n| {}", row(&setting));
        }
    }
    if !shared.is_empty() && family != Family::Layer {
        let _ = write!(text, "\n| **all** | | | | settings of each |");
        let settings = all.first().into_iter().flat_map(|first| &first.settings);
        for setting in settings.filter(|setting| shared.contains(&setting.field.name)) {
            let _ = write!(text, "\n| {}", row(setting));
        }
    }
    text
}

/// The settings that all components of a family have and that are listed once.
fn shared(family: Family, all: &[Description]) -> Vec<&'static str> {
    if !matches!(family, Family::Layer | Family::Optimizer | Family::Metric) {
        return Vec::new();
    }
    let has = |component: &Description, name: &str| {
        let mut settings = component.settings.iter();
        settings.any(|setting| setting.field.name == name)
    };
    let names = all.first().into_iter().flat_map(|first| &first.settings);
    names
        .map(|setting| setting.field.name)
        // Its default differs, and it is what is looked for first.
        .filter(|name| *name != "learning_rate" && all.iter().all(|one| has(one, name)))
        .collect()
}

fn every_layer() -> String {
    let layers = components(Family::Layer);
    let shared = shared(Family::Layer, &layers);
    let mut text = "| setting | value | default | meaning |\n|---|---|---|---|".to_owned();
    let settings = layers.first().into_iter().flat_map(|first| &first.settings);
    for setting in settings.filter(|setting| shared.contains(&setting.field.name)) {
        let _ = write!(text, "\n{}", row(setting));
    }
    let default = serde_json::Value::Null;
    let field = OF_LAYERS;
    let _ = write!(text, "\n{}", row(&Setting { field, default }));
    text
}

fn row(Setting { field, default }: &Setting) -> String {
    let default = match (field.default, default) {
        (DefaultValue::Required, _) => "required".to_owned(),
        (DefaultValue::Words(words), _) => words.to_owned(),
        (DefaultValue::Value(value), _) => format!("`{value}`"),
        (DefaultValue::Own, Json::Null) => "none".to_owned(),
        (DefaultValue::Own, Json::String(text)) => format!("`{text}`"),
        (DefaultValue::Own, value) => format!("`{}`", value.to_string().replace('"', "")),
    };
    let (name, words, doc) = (field.name, cell(&field.kind.words()), cell(field.doc));
    format!("| `{name}` | {words} | {default} | {doc} |")
}

/// The spellings that stand for a name or setting.
fn spellings() -> String {
    let mut text = "| of | written | means |\n|---|---|---|".to_owned();
    for (of, written, means) in aliases::understood() {
        let _ = write!(text, "\n| {of} | `{written}` | `{means}` |");
    }
    text
}

/// Text that does not end a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
