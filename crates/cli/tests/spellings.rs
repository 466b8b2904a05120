//! What people who come from Keras and PyTorch write: each is understood, or answered with what to write instead.

use std::path::Path;

use phalanx_cli::config::{TrainConfig, parse};

/// Where a spelling is written.
#[derive(Clone, Copy, Debug)]
enum At {
    Layer,
    Loss,
    Metric,
    Callback,
    Optimizer,
    Strategy,
    Data,
    Fit,
    File,
}

/// How it is answered.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// As this name, with these settings as JSON.
    Means(&'static str, &'static str),
    /// With a message that ends so.
    Hint(&'static str),
}

use Answer::{Hint, Means};

const MOMENTUM: &str = "write `batch_norm: {momentum: 0.9}` for PyTorch's 0.1, which is the share of the new statistics and not of the old ones";

#[rustfmt::skip]
const SPELLINGS: &[(At, &str, Answer)] = &[
    // Layers.
    (At::Layer, "Dense: {units: 2}", Means("dense", r#"{"units":2}"#)),
    (At::Layer, "Conv2D: {filters: 2, kernel_size: 3}", Means("conv2d", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "Flatten", Means("flatten", "{}")),
    (At::Layer, "BatchNormalization", Means("batch_norm", "{}")),
    (At::Layer, "batch_normalization", Means("batch_norm", "{}")),
    (At::Layer, "BatchNorm2d: {eps: 0.1}", Means("batch_norm", r#"{"epsilon":0.1}"#)),
    (At::Layer, "LayerNormalization", Means("layer_norm", "{}")),
    (At::Layer, "GroupNormalization: {groups: 2}", Means("group_norm", r#"{"groups":2}"#)),
    (At::Layer, "GroupNorm: {num_groups: 2}", Means("group_norm", r#"{"groups":2}"#)),
    (At::Layer, "Normalization: {axis: [], mean: 1.0, variance: 4.0}", Means("normalization", r#"{"axis":[],"mean":1.0,"variance":4.0}"#)),
    (At::Layer, "PReLU: {shared_axes: [1, 2]}", Means("p_relu", r#"{"shared_axes":[1,2]}"#)),
    (At::Layer, "Conv1DTranspose: {filters: 2, kernel_size: 3}", Means("conv1d_transpose", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "DepthwiseConv1D: {kernel_size: 3}", Means("depthwise_conv1d", r#"{"kernel_size":3}"#)),
    (At::Layer, "SeparableConv1D: {filters: 2, kernel_size: 3}", Means("separable_conv1d", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "ConvTranspose1d: {out_channels: 2, kernel_size: 3}", Means("conv1d_transpose", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "ConvTranspose3d: {out_channels: 2, kernel_size: 3}", Means("conv3d_transpose", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "LayerScale: {init_values: 0.1}", Means("layer_scale", r#"{"init_values":0.1}"#)),
    (At::Layer, "StochasticDepth: {drop_path_rate: 0.1}", Means("stochastic_depth", r#"{"drop_path_rate":0.1}"#)),
    (At::Layer, "DropPath: {drop_prob: 0.1}", Hint("write `stochastic_depth: {drop_path_rate: 0.1}`")),
    (At::Layer, "CustomScaleLayer: {scale: 0.1}", Means("scaled_add", r#"{"scale":0.1}"#)),
    (At::Layer, "Attention: {score_mode: concat}", Means("attention", r#"{"score_mode":"concat"}"#)),
    (
        At::Layer,
        "EinsumDense: {equation: \"ab,bc->ac\", output_shape: 3}",
        Means("einsum_dense", r#"{"equation":"ab,bc->ac","output_shape":3}"#),
    ),
    (At::Layer, "AdditiveAttention", Means("additive_attention", "{}")),
    (At::Layer, "Discretization: {bin_boundaries: [0.5]}", Means("discretization", r#"{"bin_boundaries":[0.5]}"#)),
    (At::Layer, "CategoryEncoding: {num_tokens: 4}", Means("category_encoding", r#"{"num_tokens":4}"#)),
    (At::Layer, "IntegerLookup: {vocabulary: [7, 8]}", Means("integer_lookup", r#"{"vocabulary":[7,8]}"#)),
    (At::Layer, "Hashing: {num_bins: 9}", Means("hashing", r#"{"num_bins":9}"#)),
    (At::Layer, "StringLookup", Hint("name the column in `category` of `data`, and take it by `inputs`")),
    (
        At::Layer,
        "GroupQueryAttention: {head_dim: 2, num_query_heads: 4, num_key_value_heads: 2}",
        Means("group_query_attention", r#"{"head_dim":2,"num_key_value_heads":2,"num_query_heads":4}"#),
    ),
    (
        At::Layer,
        "GroupedQueryAttention: {head_dim: 2, num_query_heads: 4, num_key_value_heads: 4}",
        Means("group_query_attention", r#"{"head_dim":2,"num_key_value_heads":4,"num_query_heads":4}"#),
    ),
    (At::Layer, "UnitNormalization", Means("unit_norm", "{}")),
    (At::Layer, "RMSNormalization", Means("rms_norm", "{}")),
    (
        At::Layer,
        "SpectralNormalization: {layer: {Dense: {units: 2}}}",
        Means("spectral_norm", r#"{"layer":{"dense":{"units":2}}}"#),
    ),
    (
        At::Layer,
        "ConvLSTM2D: {filters: 2, kernel_size: 3}",
        Means("conv_lstm2d", r#"{"filters":2,"kernel_size":3}"#),
    ),
    (
        At::Layer,
        "AdaptiveAvgPool2d: {output_size: 2}",
        Means("adaptive_average_pool2d", r#"{"output_size":2}"#),
    ),
    (
        At::Layer,
        "AdaptiveMaxPooling1D: {output_size: 2}",
        Means("adaptive_max_pool1d", r#"{"output_size":2}"#),
    ),
    (
        At::Layer,
        "STFTSpectrogram: {frame_length: 8}",
        Means("stft_spectrogram", r#"{"frame_length":8}"#),
    ),
    (At::Layer, "InstanceNorm2d", Hint("write `group_norm: {groups: -1}`")),
    (At::Layer, "max_pooling2d", Means("max_pool2d", "{}")),
    (At::Layer, "MaxPooling2D: {pool_size: 2}", Means("max_pool2d", r#"{"pool_size":2}"#)),
    (At::Layer, "MaxPool2d", Means("max_pool2d", "{}")),
    (At::Layer, "AveragePooling2D", Means("average_pool2d", "{}")),
    (At::Layer, "GlobalAveragePooling2D", Means("global_average_pool2d", "{}")),
    (At::Layer, "LSTM: {hidden_size: 4}", Means("lstm", r#"{"units":4}"#)),
    (At::Layer, "Dropout: {p: 0.5}", Means("dropout", r#"{"rate":0.5}"#)),
    (At::Layer, "SpatialDropout1D: {rate: 0.5}", Means("spatial_dropout1d", r#"{"rate":0.5}"#)),
    (At::Layer, "Dropout1d: {p: 0.5}", Means("spatial_dropout1d", r#"{"rate":0.5}"#)),
    (At::Layer, "Dropout2d: {p: 0.5}", Means("spatial_dropout2d", r#"{"rate":0.5}"#)),
    (At::Layer, "Dropout3d: {p: 0.5}", Means("spatial_dropout3d", r#"{"rate":0.5}"#)),
    (At::Layer, "GaussianNoise: {stddev: 0.1}", Means("gaussian_noise", r#"{"stddev":0.1}"#)),
    (At::Layer, "GaussianDropout: {rate: 0.1}", Means("gaussian_dropout", r#"{"rate":0.1}"#)),
    (At::Layer, "AlphaDropout: {p: 0.1}", Means("alpha_dropout", r#"{"rate":0.1}"#)),
    (At::Layer, "Embedding: {num_embeddings: 9, embedding_dim: 4}", Means("embedding", r#"{"input_dim":9,"output_dim":4}"#)),
    (At::Layer, "Conv2d: {out_channels: 2, kernel_size: 3, stride: 2}", Means("conv2d", r#"{"filters":2,"kernel_size":3,"strides":2}"#)),
    (At::Layer, "dense: {units: 2, bias: false}", Means("dense", r#"{"units":2,"use_bias":false}"#)),
    (At::Layer, "relu", Hint("write `activation: {activation: relu}`")),
    (At::Layer, "ReLU", Hint("write `activation: {activation: relu}`")),
    (At::Layer, "LeakyReLU", Hint("write `activation: {activation: leaky_relu}`")),
    (At::Layer, "softmax", Hint("write `activation: {activation: softmax}`")),
    (At::Layer, "ActivityRegularization: {l1: 0.1}", Hint("write `activation: {activation: linear, activity_regularizer: {l1_l2: {l1: 0.01, l2: 0.01}}}`")),
    (At::Layer, "Linear: {in_features: 4, out_features: 2}", Hint("write `dense: {units: N}`, or `activation: {activation: linear}`")),
    (At::Layer, "Conv1D: {filters: 2, kernel_size: 3}", Means("conv1d", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "Conv3D: {filters: 2, kernel_size: [1, 3, 3]}", Means("conv3d", r#"{"filters":2,"kernel_size":[1,3,3]}"#)),
    (At::Layer, "Conv3d: {out_channels: 2, kernel_size: 3}", Means("conv3d", r#"{"filters":2,"kernel_size":3}"#)),
    (At::Layer, "MaxPooling3D: {pool_size: 2}", Means("max_pool3d", r#"{"pool_size":2}"#)),
    (At::Layer, "AvgPool3d", Means("average_pool3d", "{}")),
    (At::Layer, "GlobalAveragePooling3D", Means("global_average_pool3d", "{}")),
    (At::Layer, "GlobalMaxPooling3D", Means("global_max_pool3d", "{}")),
    (At::Layer, "BatchNorm3d", Means("batch_norm", "{}")),
    (At::Layer, "BatchNormalization: {momentum: 0.9}", Means("batch_norm", r#"{"momentum":0.9}"#)),
    (At::Layer, "BatchNorm2d: {momentum: 0.1}", Hint(MOMENTUM)),
    (At::Layer, "batch_norm3d: {eps: 0.1, momentum: 0.1}", Hint(MOMENTUM)),
    (At::Layer, "TimeDistributed: {layer: {BatchNorm2d: {momentum: 0.1}}}", Hint(MOMENTUM)),
    (At::Layer, "ZeroPadding1D: {padding: [1, 0]}", Means("zero_padding1d", r#"{"padding":[1,0]}"#)),
    (At::Layer, "ZeroPadding3D", Means("zero_padding3d", "{}")),
    (At::Layer, "Cropping1D: {cropping: 2}", Means("cropping1d", r#"{"cropping":2}"#)),
    (At::Layer, "Cropping2D", Means("cropping2d", "{}")),
    (At::Layer, "Cropping3D", Means("cropping3d", "{}")),
    (At::Layer, "UpSampling1D: {size: 3}", Means("up_sampling1d", r#"{"size":3}"#)),
    (At::Layer, "UpSampling3D", Means("up_sampling3d", "{}")),
    (At::Layer, "MaxPooling1D: {pool_size: 2}", Means("max_pool1d", r#"{"pool_size":2}"#)),
    (At::Layer, "TimeDistributed: {layer: Flatten}", Means("time_distributed", r#"{"layer":{"flatten":{}}}"#)),
    (
        At::Layer,
        "TimeDistributed: {layer: {Conv2D: {out_channels: 2, kernel_size: 3}}}",
        Means("time_distributed", r#"{"layer":{"conv2d":{"filters":2,"kernel_size":3}}}"#),
    ),
    (At::Layer, "Bidirectional: {layer: {LSTM: {units: 4}}}", Means("bidirectional", r#"{"layer":{"lstm":{"units":4}}}"#)),
    (At::Layer, "TimeDistributed: {layer: {ReLU: {}}}", Hint("write `activation: {activation: relu}`")),
    (At::Layer, "dense: {units: 2, input_shape: [4]}", Hint("remove it: the input is one example of `data`")),
    (At::Layer, "dense: {units: 2, activation: swish}", Hint("write `silu`")),
    (At::Layer, "dense: {units: 2, kernel_initializer: kaiming_normal}", Hint("write `he_normal`")),
    (At::Layer, "conv2d: {filters: 2, kernel_size: 3, data_format: channels_last}", Hint("remove it: channels are always last")),
    // Losses.
    (At::Loss, "mse", Means("mean_squared_error", "{}")),
    (At::Loss, "MSE", Means("mean_squared_error", "{}")),
    (At::Loss, "mae", Means("mean_absolute_error", "{}")),
    (At::Loss, "MeanSquaredError", Means("mean_squared_error", "{}")),
    (At::Loss, "CategoricalCrossentropy", Means("categorical_crossentropy", "{}")),
    (At::Loss, "sparse_categorical_cross_entropy", Means("sparse_categorical_crossentropy", "{}")),
    (At::Loss, "BinaryCrossentropy: {logits: true}", Means("binary_crossentropy", r#"{"from_logits":true}"#)),
    (At::Loss, "KLDivergence", Means("kl_divergence", "{}")),
    (At::Loss, "LogCosh", Means("log_cosh", "{}")),
    (At::Loss, "mape", Means("mean_absolute_percentage_error", "{}")),
    (At::Loss, "SquaredHinge", Means("squared_hinge", "{}")),
    (At::Loss, "focal_loss", Hint("write `binary_focal_crossentropy` or `categorical_focal_crossentropy`")),
    (At::Loss, "CTCLoss", Means("ctc", "{}")),
    (At::Loss, "Dice: {axis: [1, 2]}", Means("dice", r#"{"axis":[1,2]}"#)),
    (At::Loss, "DiceLoss", Means("dice", "{}")),
    (At::Loss, "Tversky: {alpha: 0.3}", Means("tversky", r#"{"alpha":0.3}"#)),
    (At::Loss, "CrossEntropyLoss", Hint("write `sparse_categorical_crossentropy: {from_logits: true}`")),
    (At::Loss, "huber: {reduction: mean}", Hint("remove it: losses are averaged over the batch")),
    // Metrics.
    (At::Metric, "acc", Means("accuracy", "{}")),
    (At::Metric, "mse", Means("mean_squared_error", "{}")),
    (At::Metric, "mae", Means("mean_absolute_error", "{}")),
    (At::Metric, "AUC: {curve: PR}", Means("auc", r#"{"curve":"PR"}"#)),
    (At::Metric, "f1", Means("f1_score", "{}")),
    (At::Metric, "RootMeanSquaredError", Means("root_mean_squared_error", "{}")),
    (At::Metric, "rmse", Means("root_mean_squared_error", "{}")),
    (At::Metric, "R2Score", Means("r2_score", "{}")),
    (At::Metric, "MeanIoU: {num_classes: 3}", Means("mean_io_u", r#"{"num_classes":3}"#)),
    (At::Metric, "OneHotIoU: {num_classes: 3, target_class_ids: [1]}", Means("mean_io_u", r#"{"num_classes":3,"target_class_ids":[1]}"#)),
    (At::Metric, "BinaryIoU: {threshold: 0.3}", Means("binary_io_u", r#"{"threshold":0.3}"#)),
    (At::Metric, "FBetaScore: {beta: 2}", Means("fbeta_score", r#"{"beta":2}"#)),
    (At::Metric, "PrecisionAtRecall: {recall: 0.9}", Means("precision_at_recall", r#"{"recall":0.9}"#)),
    (At::Callback, "TensorBoard: {log_dir: events}", Hint("write `tensorboard: FOLDER` in `fit`")),
    (At::Callback, "tensorboard", Hint("write `tensorboard: FOLDER` in `fit`")),
    (At::Metric, "SparseCategoricalAccuracy", Means("sparse_categorical_accuracy", "{}")),
    // Optimizers.
    (At::Optimizer, "SGD", Means("sgd", "{}")),
    (At::Optimizer, "Adam: {lr: 0.1}", Means("adam", r#"{"learning_rate":0.1}"#)),
    (At::Optimizer, "AdamW: {eps: 0.1}", Means("adamw", r#"{"epsilon":0.1}"#)),
    (At::Optimizer, "RMSprop", Means("rmsprop", "{}")),
    (At::Optimizer, "adam: {beta1: 0.5}", Means("adam", r#"{"beta_1":0.5}"#)),
    (At::Optimizer, "adam: {clip_norm: 1}", Means("adam", r#"{"clipnorm":1}"#)),
    (At::Optimizer, "adam: {momentum: 0.9}", Hint("`sgd` and `rmsprop` take `momentum`")),
    (At::Optimizer, "adam: {betas: [0.9, 0.99]}", Hint("write `beta_1` and `beta_2`")),
    (At::Optimizer, "adam: {decay: 0.1}", Hint("or `weight_decay`")),
    (At::Optimizer, "adam: {max_grad_norm: 1}", Hint("write `global_clipnorm`")),
    (At::Optimizer, "momentum", Hint("write `sgd: {momentum: 0.9}`")),
    // Strategies.
    (At::Strategy, "MirroredStrategy", Means("mirrored", "{}")),
    (At::Strategy, "OneDeviceStrategy", Means("one_device", "{}")),
    (At::Strategy, "CentralStorageStrategy", Means("central_storage", "{}")),
    (At::Strategy, "TPUStrategy", Hint("write `mirrored: {devices: tpu}`")),
    (At::Strategy, "ParameterServerStrategy", Means("parameter_server", "{}")),
    (At::Strategy, "ddp", Hint("write `mirrored`")),
    // Keys of sections.
    (At::File, "epochs: 3", Hint("`epochs` is a key of `fit`: write it there")),
    (At::File, "batch_size: 3", Hint("`batch_size` is a key of `fit`: write it there")),
    (At::File, "lr: 3", Hint("as in `adam: {learning_rate: 0.001}`")),
    (At::File, "learning_rate: 3", Hint("as in `adam: {learning_rate: 0.001}`")),
    (At::File, "layers: []", Hint("write them in `model`")),
    (At::File, "mixed_precision: true", Hint("write `precision: mixed_bfloat16` or `mixed_float16`")),
    (At::File, "loss_scale: {initial_scale: 8}", Hint("write `initial`")),
    (At::File, "label: 3", Hint("`label` is a key of `data`: write it there")),
    (At::Data, "batch_size: 3", Hint("`batch_size` is a key of `fit`: write it there")),
    (At::Data, "validation_split: 0.1", Hint("write `validation: {split: 0.1}` in `fit`")),
    (At::Data, "sep: x", Hint("write `delimiter`")),
    (At::Data, "target: x", Hint("write `label`")),
    (At::Fit, "validation_split: 0.1", Hint("write `validation: {split: 0.1}` in `fit`")),
    (At::Fit, "validation_data: a.csv", Hint("write `validation: {csv: FILE}`, or `validation: test`")),
    (At::Fit, "callbacks: []", Hint("`tensorboard` writes for TensorBoard")),
    (At::Fit, "initial_epoch: 3", Hint("`phalanx train --resume` continues a training")),
    (At::Fit, "optimizer: adam", Hint("`optimizer` stands outside `fit`: write it without indentation")),
    (At::Fit, "metrics: [acc]", Hint("`metrics` stands outside `fit`: write it without indentation")),
    (At::Fit, "verbose: 1", Hint("on the command line")),
];

fn read(at: At, written: &str) -> Result<TrainConfig, String> {
    let or = |wanted: bool, default: &str| {
        let item = if wanted { written } else { default };
        if item.contains(": ") {
            format!("{{{item}}}")
        } else {
            item.to_owned()
        }
    };
    let in_section = |wanted: bool| if wanted { written } else { "" };
    let text = format!(
        "data: {{csv: a.csv, {}}}\nmodel: [{}]\nloss: {}\nmetrics: [{}]\ncallbacks: [{}]\noptimizer: {}\nstrategy: {}\nfit: {{{}}}\n{}\n",
        in_section(matches!(at, At::Data)),
        or(matches!(at, At::Layer), "flatten"),
        or(matches!(at, At::Loss), "huber"),
        or(matches!(at, At::Metric), "mean"),
        or(matches!(at, At::Callback), "terminate_on_nan"),
        or(matches!(at, At::Optimizer), "lamb"),
        or(matches!(at, At::Strategy), "mesh: {axes: {data: 1}}"),
        in_section(matches!(at, At::Fit)),
        in_section(matches!(at, At::File)),
    );
    parse(&text, Path::new("a.yaml")).map_err(|problems| problems.to_string())
}

#[test]
fn each_is_understood_or_answered_with_a_hint() {
    assert!(SPELLINGS.len() >= 40, "{}", SPELLINGS.len());
    for (at, written, answer) in SPELLINGS {
        let read = read(*at, written);
        match (answer, read) {
            (Means(name, settings), Ok(config)) => {
                let component = match at {
                    At::Layer => &config.layers()[0],
                    At::Loss => &config.losses[0].component,
                    At::Metric => &config.metrics[0].component,
                    At::Optimizer => &config.optimizer,
                    _ => config.strategy.as_ref().expect("a strategy"),
                };
                assert_eq!(component.name, *name, "{written}");
                assert_eq!(component.settings.to_string(), *settings, "{written}");
            }
            (Hint(hint), Err(message)) => {
                let line = message.lines().next().unwrap_or("");
                assert!(line.ends_with(hint), "{written}: {line}");
            }
            (answer, read) => panic!("{written}: expected {answer:?}, found {read:?}"),
        }
    }
}

#[test]
fn a_setting_in_two_spellings_is_refused() {
    let message = read(At::Optimizer, "adam: {lr: 0.1, learning_rate: 0.2}").unwrap_err();
    assert!(message.contains("unknown field `lr`"), "{message}");
    let next = "it is `learning_rate`, which is given too; keep one of them";
    assert!(message.lines().next().unwrap().ends_with(next), "{message}");
}

#[test]
fn logs_are_named_as_metrics_are() {
    let text = |metric: &str| {
        format!(
            "data: {{csv: a.csv}}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\nmetrics: [{metric}]\n\
             fit: {{validation: {{split: 0.1}}, keep_best: val_mae}}\n\
             callbacks: [{{early_stopping: {{monitor: MAE}}}}, {{csv_logger: {{filename: mae}}}}]\n"
        )
    };
    let logs = |metric: &str| {
        let config = parse(&text(metric), Path::new("a.yaml")).unwrap();
        let monitor = config.callbacks[0].settings["monitor"].as_str();
        let monitor = monitor.unwrap().to_owned();
        (config.fit.keep_best.unwrap().value, monitor)
    };
    let (best, monitor) = logs("mae");
    assert_eq!(best, "val_mean_absolute_error");
    assert_eq!(monitor, "mean_absolute_error");
    let (best, _) = logs("{mae: {name: mae}}");
    assert_eq!(best, "val_mae", "the metric is named so in the logs");
}

#[test]
fn a_mistake_is_shown_at_the_spelling_that_was_written() {
    let message = read(At::Optimizer, "adam: {lr: fast}").unwrap_err();
    assert!(message.starts_with("a.yaml:6:"), "{message}");
    assert!(
        message.contains("`learning_rate` must be a number"),
        "{message}"
    );
    let column = "optimizer: {adam: {".len() + 1;
    assert!(
        message.starts_with(&format!("a.yaml:6:{column}:")),
        "{message}"
    );
}

#[test]
fn the_list_of_known_layers_is_whole() {
    let text = "data: {csv: a.csv}\nmodel: [quux_unheard_of]\noptimizer: sgd\nloss: huber\n";
    let message = parse(text, Path::new("t.yaml")).unwrap_err().to_string();
    for layer in phalanx::components::components(phalanx::config::Family::Layer) {
        assert!(
            message.contains(layer.name),
            "no {} in {message}",
            layer.name
        );
    }
}
