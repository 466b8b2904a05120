//! Malformed saved models: each is refused with the file, the place, what was found and what to do; never with a
//! panic, and without more memory than the files have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx::prelude::*;
use serde_json::{Value, json};

const MODEL: &str = "model.json";
const WEIGHTS: &str = "weights.safetensors";
/// What takes longer does so on a machine that is not busy too.
const ENDLESS: Duration = Duration::from_secs(120);

/// Dense layers of 3 x 2 and 2 x 1: the weights are two kernels and two biases, 44 bytes in the order of the model.
fn small() -> SavedModel {
    let stack = Sequential::new([3]).add(Dense::new(2).activation(relu));
    let model = stack.add(Dense::new(1)).build().unwrap();
    let values = model.init(7).unwrap();
    SavedModel::new(model, values).unwrap()
}

/// Changes the JSON of the model.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let path = path.join(MODEL);
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(&path, manifest.to_string()).unwrap();
}

fn model(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path.join(MODEL), text).unwrap();
}

/// A model of these fields in place of the saved one.
fn config(path: &Path, config: Value) {
    edit(path, |manifest| manifest["model"] = config);
}

/// One layer in place of the saved ones.
fn layers(path: &Path, layers: &Value) {
    config(path, json!({"input": {"shape": [3]}, "layers": layers}));
}

fn field(path: &Path, name: &str, value: Value) {
    edit(path, |manifest| manifest[name] = value);
}

/// Changes the bytes of the weights.
fn weights(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = path.join(WEIGHTS);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Changes the JSON of the header of the weights.
fn header(path: &Path, change: impl FnOnce(&mut Value)) {
    weights(path, |bytes| {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        change(&mut header);
        *bytes = file(header.to_string().as_bytes(), &bytes[8 + length..]);
    });
}

/// A header of this text and the values as they were.
fn header_text(path: &Path, text: &str) {
    weights(path, |bytes| {
        let values = bytes.split_off(bytes.len() - 44);
        *bytes = file(text.as_bytes(), &values);
    });
}

fn file(header: &[u8], values: &[u8]) -> Vec<u8> {
    let length = header.len() as u64;
    [&length.to_le_bytes()[..], header, values].concat()
}

/// Changes one tensor of the header.
fn tensor(path: &Path, name: &str, field: &str, value: Value) {
    header(path, |header| header[name][field] = value);
}

fn rename(header: &mut Value, old: &str, new: &str) {
    let tensors = header.as_object_mut().unwrap();
    let tensor = tensors.remove(old).unwrap();
    tensors.insert(new.to_owned(), tensor);
}

/// Models in models, so deep.
fn nested(depth: usize) -> Value {
    (0..depth).fold(
        json!({"dense": {"units": 1}}),
        |inner, _| json!({"model": {"input": {"shape": [3]}, "layers": [inner]}}),
    )
}

/// A model that calls itself twice at each of so many levels.
fn doubling(levels: usize) -> Value {
    (0..levels).fold(json!({"dense": {"units": 3}}), |inner, _| {
        let mut inner = inner;
        inner.as_object_mut().unwrap().values_mut().next().unwrap()["name"] = json!("m");
        let calls = json!([{"layer": "m", "inputs": ["x"]}, {"layer": "m", "inputs": ["m"]}]);
        json!({"model": {"inputs": [{"name": "x", "shape": [3]}], "layers": [inner], "calls": calls, "outputs": ["m:1"]}})
    })
}

/// What is wrong, how it comes about, and what the error must hold: the place, the finding, the next action.
type Malformed = (&'static str, fn(&Path), &'static [&'static str]);

/// One case a line.
#[rustfmt::skip]
const MALFORMED: &[Malformed] = &[
    // The directory.
    ("nothing", |p| fs::remove_dir_all(p).unwrap(), &["there is no saved model at", "check the path"]),
    ("a file", |p| { fs::remove_dir_all(p).unwrap(); fs::write(p, "x").unwrap(); }, &["is a file, and a saved model is a directory", "give the directory"]),
    ("an empty directory", |p| { fs::remove_dir_all(p).unwrap(); fs::create_dir(p).unwrap(); }, &["has no file `model.json`", "check the path"]),
    ("a link to nothing", |p| { fs::remove_dir_all(p).unwrap(); symlink("nowhere", p).unwrap(); }, &["there is no saved model at", "check the path"]),
    ("a link to itself", |p| { fs::remove_dir_all(p).unwrap(); symlink(p, p).unwrap(); }, &["cannot open", "symbolic links"]),
    ("no model", |p| fs::remove_file(p.join(MODEL)).unwrap(), &["has no file `model.json`", "copy the whole directory again"]),
    ("no weights", |p| fs::remove_file(p.join(WEIGHTS)).unwrap(), &["has no file `weights.safetensors`", "copy the whole directory again"]),
    ("model is a directory", |p| { fs::remove_file(p.join(MODEL)).unwrap(); fs::create_dir(p.join(MODEL)).unwrap(); }, &["`model.json` in", "is no plain file", "check the path"]),
    ("weights are a directory", |p| { fs::remove_file(p.join(WEIGHTS)).unwrap(); fs::create_dir(p.join(WEIGHTS)).unwrap(); }, &["`weights.safetensors` in", "is no plain file"]),
    ("model is an endless device", |p| { fs::remove_file(p.join(MODEL)).unwrap(); symlink("/dev/zero", p.join(MODEL)).unwrap(); }, &["`model.json` in", "is no plain file"]),
    ("weights are an endless device", |p| { fs::remove_file(p.join(WEIGHTS)).unwrap(); symlink("/dev/zero", p.join(WEIGHTS)).unwrap(); }, &["is no plain file"]),
    ("weights are a link to nothing", |p| { fs::remove_file(p.join(WEIGHTS)).unwrap(); symlink("nowhere", p.join(WEIGHTS)).unwrap(); }, &["has no file `weights.safetensors`"]),
    ("the files changed places", |p| { fs::rename(p.join(MODEL), p.join("x")).unwrap(); fs::rename(p.join(WEIGHTS), p.join(MODEL)).unwrap(); fs::rename(p.join("x"), p.join(WEIGHTS)).unwrap(); }, &["model.json: line 1", "copy the directory again"]),
    // JSON of the model.
    ("empty model", |p| model(p, ""), &["model.json: size: the file is empty", "save the model again"]),
    ("blank model", |p| model(p, "  \n"), &["the file ends in the middle", "copy the directory again"]),
    ("truncated model", |p| { let text = fs::read(p.join(MODEL)).unwrap(); model(p, &text[..text.len() / 2]); }, &["model.json: line", "the file ends in the middle", "copy the directory again"]),
    ("zeros", |p| model(p, [0; 100]), &["model.json: line 1", "expected value", "copy the directory again"]),
    ("not UTF-8", |p| model(p, b"{\"format\": \"\xff\xfe\"}"), &["model.json: line 1", "invalid unicode", "copy the directory again"]),
    ("UTF-16", |p| model(p, b"\xff\xfe{\0}\0"), &["model.json: line 1", "copy the directory again"]),
    ("more text after the end", |p| { let mut text = fs::read(p.join(MODEL)).unwrap(); text.extend(b"{}"); model(p, text); }, &["trailing characters", "copy the directory again"]),
    ("a field twice", |p| model(p, r#"{"format": "phalanx model", "version": 1, "version": 2}"#), &["`version` is there twice", "line 1"]),
    ("a layer's field twice", |p| model(p, r#"{"format": "phalanx model", "version": 1, "model": {"input": {"shape": [3]}, "layers": [{"dense": {"units": 1, "units": 2}}]}}"#), &["`units` is there twice"]),
    ("deep brackets", |p| model(p, "[".repeat(1 << 20)), &["recursion limit", "copy the directory again"]),
    ("deep fields", |p| model(p, "{\"a\":".repeat(1 << 20)), &["recursion limit"]),
    ("more than 8 MiB", |p| model(p, vec![b' '; (8 << 20) + 1]), &["model.json: size: more than 8388608 bytes", "check that it is the right directory"]),
    ("many small values", |p| model(p, format!("[{}0]", "0,".repeat(3 << 20))), &["more than 524288 values"]),
    ("many small objects", |p| model(p, format!("[{}0]", "{\"\":0},".repeat(1 << 20))), &["more than 524288 values"]),
    ("a number beyond all bounds", |p| model(p, "{\"version\": 1e999}"), &["number out of range"]),
    ("a list", |p| model(p, "[1, 2]"), &["expected an object with the fields format, version, phalanx, model", "check that it is the right directory"]),
    ("null", |p| model(p, "null"), &["expected an object with the fields"]),
    // Which program, which version.
    ("no format", |p| edit(p, |m| { m.as_object_mut().unwrap().remove("format"); }), &["model.json: format: expected \"phalanx model\", got nothing", "check that it is the right directory"]),
    ("a model of Keras", |p| model(p, r#"{"module": "keras", "class_name": "Sequential", "config": {}}"#), &["format: expected \"phalanx model\"", "not written by phalanx"]),
    ("another format", |p| field(p, "format", json!("pt")), &["expected \"phalanx model\", got \"pt\""]),
    ("format with escapes for a terminal", |p| field(p, "format", json!("\u{1b}[2J\u{9b}31m")), &["got \"\\u001b[2J\u{fffd}31m\""]),
    ("a long format", |p| field(p, "format", json!("x".repeat(1 << 20))), &["got a text of 1048576 bytes", "check that it is the right directory"]),
    ("a later version", |p| { field(p, "version", json!(2)); field(p, "phalanx", json!("9.1.0")); }, &["version: expected up to 1, got 2", "phalanx \"9.1.0\" wrote it", "update phalanx"]),
    ("a much later version with other fields", |p| model(p, json!({"format": "phalanx model", "version": u64::MAX, "graph": []}).to_string()), &["version: expected up to 1", "phalanx of a later version", "update phalanx"]),
    ("version 0", |p| field(p, "version", json!(0)), &["version: expected 1, got 0", "save the model again"]),
    ("negative version", |p| field(p, "version", json!(-1)), &["version: expected 1, got -1"]),
    ("version as text", |p| field(p, "version", json!("1")), &["version: expected 1, got \"1\""]),
    ("version as a list", |p| field(p, "version", json!([1])), &["version: expected 1, got a list"]),
    ("no version", |p| edit(p, |m| { m.as_object_mut().unwrap().remove("version"); }), &["version: expected 1, got nothing"]),
    ("unknown field", |p| field(p, "modle", json!(1)), &["field `modle`: is no field of version 1", "did you mean `model`?"]),
    ("no model field", |p| edit(p, |m| { m.as_object_mut().unwrap().remove("model"); }), &["model: the field with the architecture is missing", "save the model again"]),
    // The architecture.
    ("model is null", |p| config(p, Value::Null), &["model.json: model", "expected fields with values, got null", "save the model again"]),
    ("model is text", |p| config(p, json!("dense")), &["expected fields with values, got \"dense\""]),
    ("no layers", |p| config(p, json!({"input": {"shape": [3]}})), &["layers: is missing; add it"]),
    ("unknown layer", |p| layers(p, &json!([{"dens": {"units": 1}}])), &["layers[0].dens: unknown layer `dens`; did you mean `dense`?", "SavedModel::load_with"]),
    ("unknown setting", |p| layers(p, &json!([{"dense": {"unit": 1}}])), &["layers[0].dense: unknown field `unit`; did you mean `units`?"]),
    ("setting of another type", |p| layers(p, &json!([{"dense": {"units": "many"}}])), &["layers[0].dense: `units` must be a whole number"]),
    ("huge layer", |p| layers(p, &json!([{"dense": {"units": u64::MAX}}])), &["layers[0].dense: `units`"]),
    ("variables beyond all memory", |p| layers(p, &json!([{"dense": {"units": 2_147_483_647}}, {"dense": {"units": 2_147_483_647}}])), &["model"]),
    ("layers that do not fit", |p| layers(p, &json!([{"conv2d": {"filters": 1, "kernel_size": 3}}])), &["layer `conv2d`: expected"]),
    ("two layers of one name", |p| layers(p, &json!([{"dense": {"units": 1, "name": "a"}}, {"dense": {"units": 1, "name": "a"}}])), &["two layers or inputs are named `a`"]),
    ("a name with a slash", |p| layers(p, &json!([{"dense": {"units": 1, "name": "../../etc"}}])), &["../../etc", "layers[0].dense"]),
    ("deep models", |p| layers(p, &json!([nested(30)])), &["nested more than 16 deep", "flatten them"]),
    ("models that double", |p| layers(p, &json!([doubling(16)])), &["more than 10000 calls"]),
    ("eleven thousand layers", |p| layers(p, &json!(vec!["flatten"; 11_000])), &["more than 10000 layers"]),
    ("an input of no dtype", |p| config(p, json!({"input": {"shape": [3], "dtype": "f33"}, "layers": ["flatten"]})), &["input.dtype: unknown type `f33`; did you mean `f32`?"]),
    ("an input that is huge", |p| config(p, json!({"input": {"shape": [u64::MAX, u64::MAX]}, "layers": ["flatten"]})), &["input"]),
    ("a call of nothing", |p| config(p, json!({"inputs": [{"name": "x", "shape": [3]}], "layers": [{"dense": {"units": 1, "name": "d"}}], "calls": [{"layer": "e", "inputs": ["x"]}], "outputs": ["d"]})), &["calls[0].layer: no layer is named `e`"]),
    ("a cycle", |p| config(p, json!({"inputs": [{"name": "x", "shape": [3]}], "layers": [{"dense": {"units": 3, "name": "d"}}], "calls": [{"layer": "d", "inputs": ["d"]}], "outputs": ["d"]})), &["used before the call that makes it"]),
    ("no outputs", |p| config(p, json!({"inputs": [{"name": "x", "shape": [3]}], "layers": [], "calls": [], "outputs": []})), &["has no outputs"]),
    // The weights as a file.
    ("empty weights", |p| weights(p, Vec::clear), &["weights.safetensors: end: the file ends too early: expected 8 bytes, got 0", "copy the file again"]),
    ("five bytes", |p| weights(p, |b| b.truncate(5)), &["expected 8 bytes, got 5"]),
    ("length alone", |p| weights(p, |b| b.truncate(8)), &["the file ends too early", "got 8"]),
    ("half a header", |p| weights(p, |b| b.truncate(40)), &["the file ends too early", "got 40", "copy the file again"]),
    ("header alone", |p| weights(p, |b| b.truncate(b.len() - 44)), &["the file ends too early", "save the model again"]),
    ("one byte too few", |p| weights(p, |b| { b.pop(); }), &["the file ends too early", "copy the file again"]),
    ("one byte too many", |p| weights(p, |b| b.push(0)), &["end: 1 bytes after the last tensor, expected none", "copy the file again"]),
    ("much too many", |p| weights(p, |b| b.resize(1 << 20, 7)), &["bytes after the last tensor"]),
    ("a huge header", |p| weights(p, |b| b[..8].fill(0xff)), &["header: 18446744073709551615 bytes, and the model's variables need at most", "check that it is a safetensors file"]),
    ("a header of 90 MB", |p| weights(p, |b| b[..8].copy_from_slice(&90_000_000u64.to_le_bytes())), &["header: 90000000 bytes"]),
    ("a header of 90 MB that is there", |p| fs::write(p.join(WEIGHTS), file(&vec![b' '; 90_000_000], &[])).unwrap(), &["header: 90000000 bytes"]),
    ("a header longer than the file", |p| weights(p, |b| b[..8].copy_from_slice(&100_000u64.to_le_bytes())), &["the file ends too early: expected 100008 bytes"]),
    ("a sparse file of 8 TB", |p| fs::File::options().write(true).open(p.join(WEIGHTS)).unwrap().set_len(8 << 40).unwrap(), &["bytes after the last tensor"]),
    ("zeros for weights", |p| weights(p, |b| b.fill(0)), &["header: expected the header of a safetensors file", "copy the file again"]),
    ("a picture", |p| fs::write(p.join(WEIGHTS), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").unwrap(), &["check that it is a safetensors file"]),
    ("a pickle of PyTorch", |p| fs::write(p.join(WEIGHTS), b"PK\x03\x04\0\0\x08\x08\0\0\0\0archive/data.pkl").unwrap(), &["check that it is a safetensors file"]),
    // The header of the weights.
    ("a header of no text", |p| header_text(p, ""), &["header: expected the header of a safetensors file: EOF"]),
    ("a header that is no JSON", |p| header_text(p, "{'a': 1}"), &["header: expected the header of a safetensors file", "key must be a string"]),
    ("a header that is a list", |p| header_text(p, "[]"), &["header: expected the header of a safetensors file"]),
    ("an empty header", |p| header_text(p, "{}"), &["44 bytes after the last tensor"]),
    ("a header that is not UTF-8", |p| weights(p, |b| b[10] = 0xff), &["header: expected the header of a safetensors file", "copy the file again"]),
    ("a header with NUL padding", |p| header_text(p, "{}\0\0\0\0\0\0"), &["trailing characters"]),
    ("a deep header", |p| header_text(p, &"{\"a\":".repeat(1000)), &["recursion limit"]),
    ("a header of many notes", |p| header(p, |h| h["__metadata__"] = json!({"a": "x".repeat(2 << 20)})), &["the model's variables need at most"]),
    ("notes that are no text", |p| header(p, |h| h["__metadata__"] = json!({"a": 1})), &["header", "invalid type"]),
    ("a tensor twice", |p| header_text(p, r#"{"dense/kernel":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"dense/kernel":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}}"#), &["`dense/kernel` is there twice"]),
    ("a tensor without offsets", |p| header(p, |h| { h["dense/bias"].as_object_mut().unwrap().remove("data_offsets"); }), &["missing field `data_offsets`"]),
    ("a tensor that is a number", |p| header(p, |h| h["dense/bias"] = json!(4)), &["header", "invalid type"]),
    ("an unknown element type", |p| tensor(p, "dense/bias", "dtype", json!("F128")), &["unknown variant `F128`"]),
    ("negative dims", |p| tensor(p, "dense/bias", "shape", json!([-2])), &["invalid value: integer `-2`"]),
    ("dims that overflow", |p| tensor(p, "dense/bias", "shape", json!([u64::MAX, u64::MAX])), &["overflow"]),
    ("offsets that overlap", |p| tensor(p, "dense/bias", "data_offsets", json!([0, 8])), &["invalid offset", "copy the file again"]),
    ("offsets with a hole", |p| tensor(p, "dense_1/bias", "data_offsets", json!([48, 52])), &["invalid offset"]),
    ("offsets in reverse", |p| tensor(p, "dense/bias", "data_offsets", json!([32, 24])), &["header", "copy the file again"]),
    ("offsets beyond the file", |p| tensor(p, "dense_1/bias", "data_offsets", json!([40, u64::MAX])), &["header", "copy the file again"]),
    ("offsets of another size", |p| tensor(p, "dense/bias", "shape", json!([3])), &["invalid shape, data type, or offset"]),
    // Tensors that are not the model's variables.
    ("a tensor renamed", |p| header(p, |h| rename(h, "dense/bias", "dense/bais")), &["no value for `dense/bias` of the model", "no variable in it for `dense/bais`; `dense/bais`: did you mean `dense/bias`?", "save the model again"]),
    ("names of PyTorch", |p| header(p, |h| { rename(h, "dense/bias", "fc.0.bias"); rename(h, "dense/kernel", "fc.0.weight"); }), &["no value for `dense/kernel`, `dense/bias` of the model, and no variable in it for `fc.0.bias`, `fc.0.weight`", "save the model again"]),
    ("a name with escapes", |p| header(p, |h| rename(h, "dense/bias", "\u{1b}[2J")), &["no variable in it for `\u{fffd}[2J`"]),
    ("a tensor less", |p| header_text(p, r#"{"dense/kernel":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"dense/bias":{"dtype":"F32","shape":[5],"data_offsets":[24,44]}}"#), &["tensors: no value for `dense_1/kernel`, `dense_1/bias` of the model", "save the model again"]),
    ("a tensor more", |p| header(p, |h| h["momentum"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [44, 44]})), &["tensors: the model has no variable for `momentum`", "save the model again"]),
    ("many tensors more", |p| header(p, |h| (0..900).for_each(|i| h[format!("t{i:03}")] = json!({"dtype": "F32", "shape": [0], "data_offsets": [44, 44]}))), &["the model has no variable for `t000`, `t001`, `t002`, `t003`, `t004`, 895 more"]),
    ("dims turned", |p| tensor(p, "dense/kernel", "shape", json!([2, 3])), &["tensor `dense/kernel`: expected F32[3,2] as in the model, got F32[2,3]", "save the model again"]),
    ("one dim instead of two", |p| tensor(p, "dense/kernel", "shape", json!([6])), &["tensor `dense/kernel`: expected F32[3,2] as in the model, got F32[6]"]),
    ("a million dims of 1", |p| tensor(p, "dense_1/bias", "shape", json!(vec![1; 300_000])), &["tensor `dense_1/bias`: expected F32[1] as in the model, got F32[1,1,1"]),
    ("another element type", |p| tensor(p, "dense/bias", "dtype", json!("I32")), &["tensor `dense/bias`: expected F32[2] as in the model, got I32[2]"]),
    ("an element type we do not have", |p| { tensor(p, "dense/bias", "dtype", json!("F8_E4M3")); tensor(p, "dense/bias", "shape", json!([8])); }, &["expected F32[2] as in the model, got F8_E4M3[8]"]),
    ("weights of another model", |p| layers(p, &json!([{"dense": {"units": 2}}, {"dense": {"units": 1}}, {"dense": {"units": 1}}])), &["no value for `dense_2/kernel`, `dense_2/bias` of the model"]),
    ("a model without variables", |p| layers(p, &json!(["flatten"])), &["the model has no variable for `dense/bias`, `dense/kernel`"]),
];

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    let _ = fs::remove_file(&path);
    path
}

#[test]
fn malformed_models_are_refused_with_the_next_action() {
    let whole = scratch("whole.phx");
    small().save(&whole).unwrap();
    for (what, spoil, parts) in MALFORMED {
        let path = scratch("malformed.phx");
        fs::create_dir(&path).unwrap();
        for name in [MODEL, WEIGHTS] {
            fs::copy(whole.join(name), path.join(name)).unwrap();
        }
        spoil(&path);
        let begun = Instant::now();
        let error = match SavedModel::load(&path) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{what}: loaded"),
        };
        assert!(begun.elapsed() < ENDLESS, "{what}: slow");
        assert!(error.contains("malformed.phx"), "{what}: {error}");
        for part in *parts {
            assert!(error.contains(part), "{what}: `{part}` is not in: {error}");
        }
        assert!(error.len() < 1500 && !error.contains('\u{1b}'), "{what}");
        assert!(!error.contains("bug in phalanx"), "{what}: {error}");
        scratch("malformed.phx");
    }
    scratch("whole.phx");
}

/// Every cut and every changed byte of the two files is loaded or refused, and the rest of the process goes on.
#[test]
fn any_cut_and_any_changed_byte_is_loaded_or_refused() {
    let path = scratch("bytes.phx");
    small().save(&path).unwrap();
    let [model, weights] = [MODEL, WEIGHTS].map(|name| fs::read(path.join(name)).unwrap());
    let registry = Registry::standard();
    for cut in 0..model.len() {
        let is_whole = cut + 1 >= model.len();
        let loaded = SavedModel::from_bytes(&model[..cut], &weights, &registry);
        assert_eq!(loaded.is_ok(), is_whole, "model cut at {cut}");
    }
    for cut in 0..weights.len() {
        let loaded = SavedModel::from_bytes(&model, &weights[..cut], &registry);
        assert!(loaded.is_err(), "weights cut at {cut}");
    }
    for (file, other) in [(&model, &weights), (&weights, &model)] {
        for (at, bit) in (0..file.len()).flat_map(|at| [0x01, 0x20, 0x80].map(|bit| (at, bit))) {
            let mut changed = file.clone();
            changed[at] ^= bit;
            let (model, weights) = match file.len() == model.len() {
                true => (&changed, other),
                false => (other, &changed),
            };
            if let Ok(saved) = SavedModel::from_bytes(model, weights, &registry) {
                assert_eq!(saved.values().len(), saved.model().variables().len());
            }
        }
    }
    scratch("bytes.phx");
}
