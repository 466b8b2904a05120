//! Files of weights as Keras 3 writes them, for its `Model.load_weights`.
//!
//! A layer is a group `layers/<class>`, the classes numbered in Keras' order of the layers (`Model.layers`); its variables are `vars/0`,
//! `vars/1`, .. in it, and its own name is an attribute of `vars`. By these Keras finds them in a model of the same layers, whatever their
//! names are.

use std::borrow::Cow;

use phalanx_graph::{DType, HostTensor};

use crate::import::hdf5::writer::{Group, H5Node};
use crate::import::{WRITER, model_layers};
use crate::nn::{KerasFile, Model};
use crate::{Error, Result};

/// Longer names of layers are left out, which Keras does not miss: a header has room for 64 KiB.
const LONGEST_NAME: usize = 1024;

/// The groups and arrays of such a file with these values of the model's variables.
pub(super) fn tree<'a>(
    model: &Model,
    values: &'a [HostTensor],
    file: KerasFile,
) -> Result<Group<'a>> {
    let mut root = Group::default();
    root.texts.insert(WRITER, env!("CARGO_PKG_VERSION").into());
    for (path, group) in model_layers::groups(model, file) {
        name(&mut root, &path, &group);
    }
    for layer in model_layers::owners(model, Some(file)) {
        let vars = match layer.group.is_empty() {
            true => None,
            false => {
                name(&mut root, &layer.path, &layer.group);
                root.group(&layer.vars)
            }
        };
        let Some(vars) = vars else {
            let first = &model.variables()[layer.variables[0]].name;
            return Err(Error::user(format!(
                "variable `{first}` is in no layer that a file of Keras has a place for, expected it in a layer of the model; \
                 save the weights as `.safetensors`"
            )));
        };
        let variables = layer.kept_twice(model).into_iter().chain(layer.variables);
        for (number, variable) in variables.enumerate() {
            let value = H5Node::Array(known_to_h5py(&values[variable]));
            vars.children.insert(number.to_string(), value);
        }
    }
    Ok(root)
}

/// Notes the name of a layer in its group.
fn name(root: &mut Group<'_>, path: &str, group: &str) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let vars = root.group(&format!("{group}/vars"));
    if let Some(vars) = vars.filter(|_| name.len() <= LONGEST_NAME) {
        vars.texts.insert("name", name.to_owned());
    }
}

/// Values of a type that h5py reads as numbers.
fn known_to_h5py(value: &HostTensor) -> Cow<'_, HostTensor> {
    match value.dtype() {
        DType::Bf16 => Cow::Owned(value.convert(DType::F32)),
        DType::Bool => Cow::Owned(value.convert(DType::U8)),
        _ => Cow::Borrowed(value),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use phalanx_graph::Shape;

    use super::*;
    use crate::import::hdf5::writer::Hdf5File;
    use crate::import::hdf5::{Hdf5, Object};
    use crate::import::{LoadWeights, Matching, PairedBy};
    use crate::nn::*;
    use crate::saved::SavedModel;

    /// The model `exported` of `make_weights.py`.
    fn model() -> Model {
        let mut inner = Network::new();
        let inside = inner.input([6, 4]);
        let short = inner.add(Dense::new(4), &[inside]);
        let long = inner.add(Dense::new(4).activation(relu), &[inside]);
        let long = inner.add(Dense::new(4).activation(tanh), &[long]);
        let sum = inner.add(Add, &[short, long]);
        let normal = inner.add(LayerNorm::new(), &[sum]);
        let inner = inner.build(&[inside], &[normal]).unwrap();
        let mut network = Network::new();
        let x = network.input([6, 4]);
        let both = Bidirectional::new(Lstm::new(2).return_sequences(true));
        let y = network.add(both, &[x]);
        let attended = network.add(MultiHeadAttention::new(2, 2), &[y]);
        let y = network.add(Add, &[y, attended]);
        let scored = Attention::new()
            .use_scale(true)
            .score_mode(ScoreMode::Concat);
        let scored = network.add(scored, &[y, y]);
        let y = network.add(AdditiveAttention::new(), &[scored, y]);
        let y = network.add(Conv1d::new(4, 3).padding(StepPadding::Same), &[y]);
        let y = network.add(inner, &[y]);
        let image = network.add(Reshape::new([6, 4, 1]), &[y]);
        let columns = Bidirectional::new(Lstm::new(1).return_sequences(true));
        let image = network.add(TimeDistributed::new(columns), &[image]);
        let image = network.add(TimeDistributed::new(Conv1d::new(2, 2)), &[image]);
        let image = network.add(Conv2dTranspose::new(2, 2), &[image]);
        let volume = network.add(Reshape::new([7, 4, 2, 1]), &[image]);
        let volume = network.add(Conv3d::new(2, (2, 1, 2)), &[volume]);
        let image = network.add(Reshape::new([6, 4, 2]), &[volume]);
        let image = network.add(SeparableConv2d::new(2, 2), &[image]);
        let image = network.add(Conv2d::new(2, 2), &[image]);
        let image = network.add(DepthwiseConv2d::new(2), &[image]);
        let image = network.add(BatchNorm::new(), &[image]);
        let image = network.add(Normalization::new(), &[image]);
        let image = network.add(PRelu::new().shared_axes([1, 2]), &[image]);
        let branch = network.add(LayerScale::new(0.1), &[image]);
        let branch = network.add(StochasticDepth::new(0.5), &[branch]);
        let image = network.add(ScaledAdd::new(0.5), &[image, branch]);
        let image = network.add(GroupNorm::new().groups(2), &[image]);
        let image = network.add(GlobalAveragePool2d::new(), &[image]);
        let steps = network.add(Dropout::new(0.5), &[y]);
        let steps = network.add(Gru::new(3).return_sequences(true), &[steps]);
        let steps = network.add(SimpleRnn::new(2), &[steps]);
        let all = network.add(Concatenate::new(), &[image, steps]);
        let out = network.add(Dense::new(1), &[all]);
        network.build(&[x], &[out]).unwrap()
    }

    fn written(saved: &SavedModel, file: KerasFile) -> Vec<u8> {
        let tree = tree(saved.model(), saved.values(), file).unwrap();
        let file = Hdf5File::new(&tree);
        let mut bytes = Vec::new();
        file.write(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, file.len());
        bytes
    }

    /// All arrays below a group: dims and bytes by path.
    type Arrays = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

    fn collect(file: &Hdf5<'_>, object: &Object<'_>, path: &str, into: &mut Arrays) {
        if let Some(array) = file.array(object).unwrap() {
            let bytes = file.read(&array).unwrap();
            into.insert(path.to_owned(), (array.dims, bytes));
        }
        for (name, address) in file.children(object).unwrap() {
            let child = file.object(address).unwrap();
            collect(file, &child, &format!("{path}/{name}"), into);
        }
    }

    fn arrays(bytes: &[u8]) -> Arrays {
        let file = Hdf5::open(bytes).unwrap();
        let mut all = Arrays::new();
        collect(&file, &file.root().unwrap(), "", &mut all);
        all
    }

    #[test]
    fn a_file_has_the_arrays_that_keras_writes_where_keras_writes_them() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/keras");
        let golden = std::fs::read(format!("{root}/weights/exported.weights.h5")).unwrap();
        let model = model();
        let values = model.init(1).unwrap();
        let mut saved = SavedModel::new(model, values).unwrap();
        let report = saved.load_weights_from("golden", &golden, LoadWeights::default());
        assert_eq!(report.unwrap().unexpected, Vec::<String>::new());
        let (ours, theirs) = (
            arrays(&written(&saved, KerasFile::Weights)),
            arrays(&golden),
        );
        let paths = |arrays: &Arrays| arrays.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(&ours), paths(&theirs));
        assert!(ours == theirs, "values differ");
    }

    /// Branches alike but for masks, whose order Keras' operations on masks change; and for a layer that only here takes a mask off.
    #[test]
    fn layers_before_masks_are_where_keras_has_them() {
        let root = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/keras/saved"
        );
        let check = |name: &str, file| {
            let golden = std::fs::read(format!("{root}/{name}.weights.h5")).unwrap();
            let saved = SavedModel::load_keras(format!("{root}/{name}.keras")).unwrap();
            let mut theirs = arrays(&golden);
            theirs.retain(|path, _| !path.contains("seed_generator"));
            assert!(arrays(&written(&saved, file)) == theirs, "{name}: {file:?}");
        };
        check("uneven", KerasFile::Weights);
        check("uneven", KerasFile::Archive);
        check("gated", KerasFile::Weights);
    }

    /// Keras looks for the values of a model in the model by its class.
    #[test]
    fn models_inside_are_in_groups_of_the_classes_that_archives_have() {
        let inner = |layer: LayerSpec| Sequential::new([4, 2]).add(layer).build().unwrap();
        let model = Sequential::new([4, 2])
            .add(inner(MultiHeadAttention::new(1, 2).into()))
            .add(inner(Dense::new(2).into()));
        let model = model.build().unwrap();
        let config = model.keras_config().unwrap();
        let layers = config["config"]["layers"].as_array().unwrap();
        let classes: Vec<_> = layers.iter().map(|layer| &layer["class_name"]).collect();
        assert_eq!(classes, ["InputLayer", "Functional", "Sequential"]);
        let values = model.init(1).unwrap();
        let arrays = arrays(&written(
            &SavedModel::new(model, values).unwrap(),
            KerasFile::Archive,
        ));
        let groups = arrays.keys().map(|path| path.split('/').nth(2).unwrap());
        let groups: BTreeSet<&str> = groups.collect();
        assert_eq!(groups, BTreeSet::from(["functional", "sequential"]));
    }

    /// Keras notes the name of the layer inside, which has none here.
    #[test]
    fn layers_of_each_step_are_read_by_the_names_of_keras() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/keras");
        let golden = std::fs::read(format!("{root}/weights/exported.weights.h5")).unwrap();
        let columns = Bidirectional::new(Lstm::new(1).return_sequences(true));
        let model = Sequential::new([6, 4, 1])
            .add(TimeDistributed::new(columns))
            .add(TimeDistributed::new(Conv1d::new(2, 2)));
        let model = model.build().unwrap();
        let values = model.init(1).unwrap();
        let mut saved = SavedModel::new(model, values).unwrap();
        let names = LoadWeights {
            matching: Matching::Names,
            ..LoadWeights::default()
        };
        let report = saved.load_weights_from("golden", &golden, names).unwrap();
        assert_eq!((report.matched.len(), report.missing.len()), (8, 0));
    }

    #[test]
    fn what_was_written_is_read_by_names() {
        let model = model();
        let first = SavedModel::new(model.clone(), model.init(1).unwrap()).unwrap();
        let mut again = SavedModel::new(model.clone(), model.init(2).unwrap()).unwrap();
        let written = written(&first, KerasFile::Weights);
        let report = again.load_weights_from("ours", &written, LoadWeights::default());
        assert_eq!(report.unwrap().paired, PairedBy::Name);
        assert_eq!(again.values(), first.values());
    }

    #[test]
    fn values_of_16_bits_are_widened() {
        let half = HostTensor::zeros(Shape::new(DType::Bf16, [3]));
        assert_eq!(known_to_h5py(&half).dtype(), DType::F32);
        let single = HostTensor::zeros(Shape::new(DType::F32, [3]));
        assert!(matches!(known_to_h5py(&single), Cow::Borrowed(_)));
    }
}
