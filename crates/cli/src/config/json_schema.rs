//! The JSON Schema of a training file, made of its tables and of the library's components.
//!
//! <https://json-schema.org/draft/2020-12>; editors complete and check YAML files by it. It lists each name once: other
//! spellings that are understood are not in it.

use std::ops::Bound;

use phalanx::components::components;
use phalanx::config::{DefaultValue, Description, Family, Field, Kind, Setting};
use serde_json::{Map, Value as Json, json};

use super::bins::{self, NUM_BINS};
use super::inputs::OF_LAYERS;
use super::keras_compile::ANSWERED;
use super::training_file::FILE;

/// The schema.
#[must_use]
pub fn schema() -> Json {
    let mut schema = section(FILE);
    // A file of Keras may say them.
    schema["anyOf"] = json!([
        { "type": "object", "required": ANSWERED },
        { "type": "object", "properties": { "model": { "type": "string" } } },
    ]);
    let mut definitions = Map::new();
    for family in Family::ALL {
        define(family, &mut definitions);
    }
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "phalanx training file",
        "description": "What to train, on what, and how: `phalanx train FILE`.",
        "$defs": definitions,
    });
    merge(&mut schema, head);
    schema
}

/// Adds a family and each of its components to the definitions.
fn define(family: Family, definitions: &mut Map<String, Json>) {
    let all = components(family);
    let word = family.word();
    let mut names: Vec<Json> = Vec::new();
    let mut properties = Map::new();
    for component in &all {
        let id = format!("{word}.{}", component.name);
        let mut schema = settings(component);
        if family == Family::Layer {
            schema["properties"][OF_LAYERS.name] = described(&OF_LAYERS);
        }
        if family == Family::Layer && component.name == bins::LAYER {
            let one_of = |name: &str| json!({ "type": "object", "required": [name] });
            let names = schema["required"].take();
            schema["anyOf"] = json!([
                one_of(names[0].as_str().unwrap_or_default()),
                one_of(NUM_BINS.name)
            ]);
            schema["required"] = json!([]);
            schema["properties"][NUM_BINS.name] = described(&NUM_BINS);
        }
        definitions.insert(id.clone(), schema);
        properties.insert(
            component.name.to_owned(),
            json!({ "$ref": format!("#/$defs/{id}"), "description": component.doc }),
        );
        if component.settings.iter().all(|s| !s.field.is_required()) {
            names.push(component.name.into());
        }
    }
    let named = json!({
        "type": "object", "properties": properties, "additionalProperties": false,
        "minProperties": 1, "maxProperties": 1,
    });
    let mut forms = vec![named];
    if !names.is_empty() && family != Family::Schedule {
        forms.insert(0, json!({ "enum": names }));
    }
    if family == Family::Schedule {
        let kinds: Vec<&str> = all.iter().map(|schedule| schedule.name).collect();
        forms.push(json!({
            "type": "object", "required": ["kind"],
            "properties": { "kind": { "enum": kinds } },
        }));
    }
    definitions.insert(word.to_owned(), json!({ "anyOf": forms }));
}

/// The settings of a component.
fn settings(component: &Description) -> Json {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for Setting { field, default } in &component.settings {
        let mut schema = described(field);
        if field.is_required() {
            required.push(field.name);
        } else if !default.is_null() {
            schema["default"] = default.clone();
        } else if field.default == DefaultValue::Own {
            schema = json!({
                "anyOf": [of(&field.kind), { "type": "null" }],
                "description": field.doc,
            });
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let mut schema = json!({
        "type": if required.is_empty() { json!(["object", "null"]) } else { json!("object") },
        "properties": properties, "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn section(fields: &[Field]) -> Json {
    let properties = fields
        .iter()
        .map(|field| (field.name.to_owned(), described(field)));
    let properties: Map<String, Json> = properties.collect();
    let required = fields.iter().filter(|field| field.is_required());
    let required: Vec<&str> = required.map(|field| field.name).collect();
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

/// A field with its description and default.
fn described(field: &Field) -> Json {
    let mut schema = of(&field.kind);
    let mut notes = json!({ "description": field.doc });
    if let DefaultValue::Value(text) = field.default
        && let Some(default) = phalanx_yaml::parse(text.as_bytes())
            .ok()
            .and_then(|(node, _)| node.to_json())
    {
        notes["default"] = default;
    }
    merge(&mut schema, notes);
    schema
}

fn of(kind: &Kind) -> Json {
    match kind {
        Kind::Null => json!({ "type": "null" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Whole(least, most) => whole(*least, *most),
        Kind::Number(least, most) => number(*least, *most),
        Kind::Text => json!({ "type": "string", "minLength": 1 }),
        Kind::OneOf(words) => json!({ "enum": words }),
        Kind::List(kind, least, most) => list(&of(kind), *least, *most),
        Kind::Map(kind) => json!({ "type": "object", "additionalProperties": of(kind) }),
        Kind::Section(fields) => section(fields),
        Kind::OneKeyOf(fields) => {
            let mut schema = section(fields);
            merge(
                &mut schema,
                json!({ "minProperties": 1, "maxProperties": 1 }),
            );
            schema
        }
        Kind::Component(family) => reference(*family),
        Kind::Components(family, least, most) => list(&reference(*family), *least, *most),
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(of).collect::<Vec<_>>() }),
        Kind::Worded(_, kind) => of(kind),
    }
}

fn reference(family: Family) -> Json {
    json!({ "$ref": format!("#/$defs/{}", family.word()) })
}

fn list(items: &Json, least: usize, most: usize) -> Json {
    let mut schema = json!({ "type": "array", "items": items });
    if least > 0 {
        schema["minItems"] = least.into();
    }
    if most < usize::MAX {
        schema["maxItems"] = most.into();
    }
    schema
}

fn whole(least: i64, most: i64) -> Json {
    let mut schema = json!({ "type": "integer" });
    if least > i64::MIN {
        schema["minimum"] = least.into();
    }
    if most < i64::MAX {
        schema["maximum"] = most.into();
    }
    schema
}

fn number(least: Bound<f64>, most: Bound<f64>) -> Json {
    let mut schema = json!({ "type": "number" });
    let limits = [
        (least, "minimum", "exclusiveMinimum"),
        (most, "maximum", "exclusiveMaximum"),
    ];
    for (bound, included, excluded) in limits {
        match bound {
            Bound::Included(limit) => schema[included] = limit.into(),
            Bound::Excluded(limit) => schema[excluded] = limit.into(),
            Bound::Unbounded => {}
        }
    }
    schema
}

/// Adds the members of `more`.
fn merge(schema: &mut Json, more: Json) {
    if let (Json::Object(schema), Json::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}
