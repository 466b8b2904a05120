//! What most programs use: `use phalanx::prelude::*;`.

pub use crate::data::{Batches, ClassWeights, CsvOptions, Dataset, HostTensor};
pub use crate::datasets;
pub use crate::fit::{
    Compile, Fit, History, Logs, LossScale, Losses, OutputMetric, Progress, Trainer,
};
pub use crate::losses::{
    BinaryCrossentropy, BinaryFocalCrossentropy, CategoricalCrossentropy,
    CategoricalFocalCrossentropy, CategoricalGeneralizedCrossEntropy, CategoricalHinge, Circle,
    CosineSimilarity, Ctc, Dice, Hinge, Huber, KlDivergence, LogCosh, Loss, MeanAbsoluteError,
    MeanAbsolutePercentageError, MeanSquaredError, MeanSquaredLogarithmicError, Poisson,
    SparseCategoricalCrossentropy, SquaredHinge, Tversky,
};
pub use crate::metrics::{
    Accuracy, Auc, F1Score, FBetaScore, MeanIou, Metric, Precision, R2Score, Recall,
    RootMeanSquaredError,
};
pub use crate::nn::*;
pub use crate::optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Ftrl, Lamb, Lion, Muon, Nadam, Optimizer,
    RmsProp, Sgd,
};
pub use crate::saved::SavedModel;
pub use crate::schedules::{CosineDecay, Schedule};
pub use crate::strategy::{
    CentralStorageStrategy, CustomTraining, Inputs, Mesh, MeshStrategy, MirroredStrategy,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, ParameterServerStrategy, PerReplica,
    PipelineStrategy, Reduce, Strategy, TpuStrategy,
};
pub use crate::{DType, Graph, ReduceOp, Shape, Tensor};
