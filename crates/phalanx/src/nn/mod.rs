//! Neural networks: layers, how they are connected, and what they need.
//!
//! A [`Model`] is made of layers by [`Sequential`] or [`Network`]. It is a description: it holds no values of
//! variables and no graph. [`Model::init`] makes first values; [`Model::call`] builds its outputs in a graph.

mod activation;
mod activation_functions;
mod activation_names;
mod adaptive_pool;
mod architecture;
mod attention;
mod attention_settings;
mod aug_mix;
mod augment;
mod bidirectional;
mod blur;
mod category_encoding;
mod clahe;
mod colour;
mod constraint;
mod context;
mod conv;
mod conv1d;
mod conv_lstm;
mod conv_transpose;
mod dense;
mod depthwise;
mod diagram;
mod discretization;
mod dot;
mod dropout;
mod edges;
mod einsum_dense;
mod elastic;
mod embedding;
mod embedding_bag;
mod factor;
mod feature_order;
mod fields;
mod flags;
mod flattened;
mod footprint;
mod fourier;
mod group_norm;
mod gru;
mod hashed_crossing;
mod hashing;
mod index_inputs;
mod initializer;
mod inner_layer;
mod inner_models;
mod input;
mod integer_lookup;
mod keras_config;
mod keras_graph;
mod keras_order;
mod layer;
mod layer_scale;
mod lengths;
mod lstm;
mod masking;
mod masks;
mod mel_spectrogram;
mod merge;
mod model;
mod names;
mod network;
mod norm;
mod normalization;
mod p_relu;
mod picture_layer;
mod pool;
mod position;
mod precision;
mod preprocess;
mod rand_augment;
mod random_numbers;
mod recurrent;
mod registry;
mod regularizer;
mod resizing;
mod reversible_embedding;
mod rms_norm;
mod rnn;
mod rnn_cell;
mod rnn_cells;
mod sampling;
mod score_attention;
mod sequence_pool;
mod sequential;
mod settings;
mod shaping;
mod sharding;
mod simple_rnn;
mod sizes;
mod sorted_table;
mod spectral_norm;
mod spectrogram;
mod summary;
mod time_distributed;
mod tones;
mod upsampling;
mod variable;
mod warp;

pub use activation::{
    Activation, ActivationLayer, gelu, relu, relu6, selu, sigmoid, silu, softmax, softplus, tanh,
};
pub use adaptive_pool::{
    AdaptiveAveragePool1d, AdaptiveAveragePool2d, AdaptiveAveragePool3d, AdaptiveMaxPool1d,
    AdaptiveMaxPool2d, AdaptiveMaxPool3d,
};
pub use attention::{GroupQueryAttention, MultiHeadAttention};
pub use aug_mix::AugMix;
pub use augment::{Flip, RandomCrop, RandomFlip};
pub use bidirectional::{Bidirectional, MergeMode, Recurrent};
pub use blur::{RandomErasing, RandomGaussianBlur};
pub use category_encoding::{CategoryEncoding, CategoryOutput};
pub use clahe::ContrastLimitedAdaptiveHistogramEqualization;
pub use colour::{
    AutoContrast, RandomBrightness, RandomColorDegeneration, RandomContrast, RandomGrayscale,
    RandomHue, RandomInvert, RandomSaturation, RandomSharpness,
};
pub use constraint::Constraint;
pub use context::{Cx, Effects};
pub use conv::{Conv2d, Conv3d};
pub use conv_lstm::{ConvLstm1d, ConvLstm2d, ConvLstm3d};
pub use conv_transpose::{Conv1dTranspose, Conv2dTranspose, Conv3dTranspose};
pub use conv1d::{Conv1d, StepPadding};
pub use dense::Dense;
pub use depthwise::{DepthwiseConv1d, DepthwiseConv2d, SeparableConv1d, SeparableConv2d};
pub use discretization::Discretization;
pub use dot::{Dot, Interaction};
pub use dropout::{
    AlphaDropout, Dropout, GaussianDropout, GaussianNoise, SpatialDropout1d, SpatialDropout2d,
    SpatialDropout3d, StochasticDepth,
};
pub use edges::{Cropping1d, Cropping2d, Cropping3d, ZeroPadding1d, ZeroPadding2d, ZeroPadding3d};
pub use einsum_dense::EinsumDense;
pub use elastic::RandomElasticTransform;
pub use embedding::Embedding;
pub use embedding_bag::{Combiner, EmbeddingBag};
pub use factor::Factor;
pub(crate) use fields::every_layer_settings;
pub(crate) use flattened::PytorchOrders;
pub use fourier::{ComplexPart, WindowFunction, WindowScaling};
pub use group_norm::{GroupNorm, UnitNorm};
pub use gru::Gru;
pub use hashed_crossing::HashedCrossing;
pub use hashing::Hashing;
pub(crate) use index_inputs::Table;
pub(crate) use initializer::FirstRows;
pub use initializer::{Fan, Initializer, ScaledDistribution};
pub use input::Input;
pub use integer_lookup::IntegerLookup;
pub(crate) use keras_config::{WRITTEN as KERAS_WRITTEN, check_starts};
pub(crate) use keras_order::KerasFile;
pub use layer::{Layer, LayerSpec};
pub use layer_scale::LayerScale;
pub use lstm::Lstm;
pub use masking::Masking;
pub(crate) use masks::{mask_of_rows, rows_to_each};
pub use mel_spectrogram::MelSpectrogram;
pub use merge::{Add, Average, Concatenate, Maximum, Minimum, Multiply, ScaledAdd, Subtract};
pub use model::{IntoModel, Model};
pub use network::{Network, Node, Shared};
pub use norm::{BatchNorm, LayerNorm};
pub use normalization::Normalization;
pub use p_relu::PRelu;
pub use phalanx_graph::Sharding;
pub use pool::{
    AveragePool1d, AveragePool2d, AveragePool3d, GlobalAveragePool2d, GlobalAveragePool3d,
    GlobalMaxPool2d, GlobalMaxPool3d, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use position::{PositionEmbedding, SinusoidalPosition};
pub use precision::Policy;
pub use preprocess::{PerChannel, Preprocess, Rescaling};
pub use rand_augment::{RandAugment, RandomColorJitter};
pub(crate) use random_numbers::{normal_numbers, uniform_numbers};
pub(crate) use recurrent::RECURRENT;
pub(crate) use registry::with_outer_fields;
pub use registry::{Registry, layer_from_config};
pub use regularizer::{OrthogonalVectors, Regularizer};
pub use resizing::{CenterCrop, Resizing};
pub use reversible_embedding::ReversibleEmbedding;
pub use rms_norm::RmsNorm;
pub use rnn::Rnn;
pub(crate) use rnn_cell::Cells;
pub use rnn_cell::RnnCell;
pub use rnn_cells::{GruCell, LstmCell, SimpleRnnCell};
pub use score_attention::{AdditiveAttention, Attention, ScoreMode};
pub use sequence_pool::{GlobalAveragePool1d, GlobalMaxPool1d};
pub use sequential::Sequential;
pub use shaping::{Flatten, Permute, RepeatVector, Reshape};
pub use simple_rnn::SimpleRnn;
pub use sizes::{Padding, Pair, Sizes, Triple};
pub use spectral_norm::SpectralNorm;
pub use spectrogram::{SpectrogramMode, StftSpectrogram};
pub use time_distributed::TimeDistributed;
pub use tones::{Equalization, RandomPosterization, Solarization};
pub use upsampling::{Interpolation, UpSampling1d, UpSampling2d, UpSampling3d};
pub use variable::Variable;
pub use warp::{RandomPerspective, RandomRotation, RandomShear, RandomTranslation, RandomZoom};
