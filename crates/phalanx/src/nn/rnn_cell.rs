//! Cells: what a recurrent layer does at one step.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;

use phalanx_graph::{Shape, Tensor};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::rnn_cells::{GruCell, LstmCell, SimpleRnnCell};
use super::{Cx, Gru, Lstm, SimpleRnn};
use crate::{Result, config};

/// What a recurrent layer, [`Rnn`](super::Rnn), does at one step: Keras' cells.
///
/// Like a [`Layer`](super::Layer) it holds its settings alone. Dims are of one example, without the batch. The graph of [`step`](Self::step) is built
/// once and runs for every step, so that a step uses what it is given and no other tensors: variables are among the
/// [`constants`](Self::constants).
///
/// ```
/// use phalanx::nn::{Cx, Initializer, Rnn, RnnCell, Sequential};
/// use phalanx_graph::{Shape, Tensor};
///
/// /// `h = x kernel + h recurrent_kernel`, the example on Keras' page of `RNN`.
/// #[derive(Debug)]
/// struct Minimal {
///     units: usize,
/// }
///
/// impl RnnCell for Minimal {
///     fn kind(&self) -> &'static str {
///         "minimal"
///     }
///     fn config(&self) -> serde_json::Value {
///         serde_json::json!({"units": self.units})
///     }
///     fn state_dims(&self) -> Vec<Vec<usize>> {
///         vec![vec![self.units]]
///     }
///     fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor> {
///         let mut kernel = |name: &str, rows: usize| {
///             let shape = Shape::new(input.dtype, [rows, self.units]);
///             cx.variable(name, shape, &Initializer::GlorotUniform)
///         };
///         vec![kernel("kernel", input.dims[1]), kernel("recurrent_kernel", self.units)]
///     }
///     fn step(&self, input: &Tensor, states: &[Tensor], constants: &[Tensor]) -> (Tensor, Vec<Tensor>) {
///         let h = input.matmul(&constants[0]) + states[0].matmul(&constants[1]);
///         (h.clone(), vec![h])
///     }
/// }
///
/// let model = Sequential::new([10, 5]).add(Rnn::new(Minimal { units: 32 })).build()?;
/// assert_eq!(model.outputs()[0].dims, [32]);
/// assert_eq!(model.variables()[1].name, "rnn/recurrent_kernel");
/// # Ok::<(), phalanx::Error>(())
/// ```
pub trait RnnCell: Debug + Send + Sync {
    /// The name of the cell in `snake_case`, in JSON.
    fn kind(&self) -> &'static str;

    /// The settings, from which [`Registry::with_cell`](super::Registry::with_cell) makes the cell again.
    fn config(&self) -> Value;

    /// The dims of each state; Keras' `state_size`.
    fn state_dims(&self) -> Vec<Vec<usize>>;

    /// The dims of the output of a step, Keras' `output_size`: as of the first state, unless the cell says otherwise.
    fn output_dims(&self) -> Vec<usize> {
        self.state_dims().into_iter().next().unwrap_or_default()
    }

    /// Variables, and what else is the same at every step, such as what a [`Dropout`](super::Dropout) keeps; `input` is the shape of what a step
    /// gets, `[batch, ..]`.
    fn constants(&self, cx: &mut Cx, input: &Shape) -> Vec<Tensor>;

    /// The states before the first step, `[batch, ..]` each, where they are not given as inputs; zeros if there is none. Keras' `get_initial_state`.
    fn first_states(&self, _input: &Shape, _constants: &[Tensor]) -> Option<Vec<Tensor>> {
        None
    }

    /// The output of a step and the states after it, `[batch, ..]` each.
    ///
    /// Input and states are in what the layer [computes in](Cx::compute_dtype), to which results of other floats are converted.
    #[track_caller]
    fn step(
        &self,
        input: &Tensor,
        states: &[Tensor],
        constants: &[Tensor],
    ) -> (Tensor, Vec<Tensor>);

    /// Whether it is a cell of this library, whose kind no other has: files would be read as this one.
    #[doc(hidden)]
    fn is_of_library(&self) -> bool {
        false
    }

    /// What is wrong with the settings, whatever the inputs.
    ///
    /// # Errors
    /// A sentence with the field in backticks, what was expected and what was got.
    fn check_settings(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// What is wrong with inputs that have these dims at each step.
    ///
    /// # Errors
    /// A sentence with what was expected and what was got.
    fn check(&self, _input: &[usize]) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// Makes a cell of its settings.
type MakeCell = Arc<dyn Fn(&Value) -> Result<Arc<dyn RnnCell>> + Send + Sync>;

/// A cell of a program by its kind.
#[derive(Clone)]
pub(super) struct OwnCell {
    pub(super) kind: String,
    make: MakeCell,
}

impl OwnCell {
    pub(super) fn new<C: RnnCell + 'static>(
        kind: &str,
        make: impl Fn(&Value) -> Result<C> + Send + Sync + 'static,
    ) -> Self {
        Self {
            kind: kind.to_owned(),
            make: Arc::new(move |settings| Ok(Arc::new(make(settings)?))),
        }
    }
}

thread_local! {
    /// The cells of the program that can be read, of the registry that reads a layer on this thread.
    pub(super) static OWN_CELLS: RefCell<Vec<OwnCell>> = const { RefCell::new(Vec::new()) };
}

/// The kinds of cells of this library.
pub(super) const CELLS: [&str; 3] = ["lstm", "gru", "simple_rnn"];

/// The cells of a layer, each on the output of the one before, which JSON has as `[{kind: settings}, ..]`.
#[derive(Clone, Debug)]
pub(crate) struct Cells(pub(super) Vec<Arc<dyn RnnCell>>);

impl Cells {
    fn config(&self) -> Value {
        let cells = self.0.iter();
        cells
            .map(|cell| json!({cell.kind(): cell.config()}))
            .collect()
    }

    /// A name for each of several, by its kind: Keras' in its files.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for cell in &self.0 {
            let kind = cell.kind();
            let class = match CELLS.contains(&kind) {
                true => format!("{kind}_cell"),
                false => kind.to_owned(),
            };
            let numbered = (1..).map(|number| format!("{class}_{number}"));
            let mut all = std::iter::once(class.clone()).chain(numbered);
            names.extend(all.find(|name| !names.contains(name)));
        }
        names
    }

    /// Whether a cell of a program is in a configuration.
    pub(crate) fn are_own_in(config: &Value) -> bool {
        let is_own = |cell: &Value| {
            let mut kinds = cell.as_object().into_iter().flat_map(|cell| cell.keys());
            kinds.any(|kind| !CELLS.contains(&kind.as_str()))
        };
        match config {
            Value::Object(fields) => fields.iter().any(|(field, value)| {
                let cells = value.as_array().filter(|_| field == "cells");
                cells.into_iter().flatten().any(is_own) || Self::are_own_in(value)
            }),
            Value::Array(values) => values.iter().any(Self::are_own_in),
            _ => false,
        }
    }
}

impl PartialEq for Cells {
    fn eq(&self, other: &Self) -> bool {
        self.config() == other.config()
    }
}

impl Serialize for Cells {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.config().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cells {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let cells = Vec::<Value>::deserialize(deserializer)?;
        if cells.is_empty() {
            return Err(D::Error::custom("expected at least one cell, got none"));
        }
        let cells = cells.iter().map(|cell| {
            let mut given = cell.as_object().into_iter().flatten();
            let (Some((kind, settings)), None) = (given.next(), given.next()) else {
                let message =
                    format!(r#"expected a cell such as {{"lstm": {{"units": 8}}}}, got {cell}"#);
                return Err(D::Error::custom(message));
            };
            cell_from_config(kind, settings).map_err(D::Error::custom)
        });
        cells.collect::<std::result::Result<_, _>>().map(Self)
    }
}

fn cell_from_config(kind: &str, settings: &Value) -> Result<Arc<dyn RnnCell>> {
    let own = OWN_CELLS.with_borrow(|own| own.iter().find(|cell| cell.kind == kind).cloned());
    if let Some(own) = own {
        return (own.make)(settings);
    }
    Ok(match kind {
        "lstm" => Arc::new(LstmCell::from(config::read(kind, &Lstm::new(1), settings)?)),
        "gru" => Arc::new(GruCell::from(config::read(kind, &Gru::new(1), settings)?)),
        "simple_rnn" => Arc::new(SimpleRnnCell::from(config::read(
            kind,
            &SimpleRnn::new(1),
            settings,
        )?)),
        _ => {
            let own = OWN_CELLS.with_borrow(Clone::clone);
            let known: Vec<&str> = CELLS
                .into_iter()
                .chain(own.iter().map(|cell| cell.kind.as_str()))
                .collect();
            return Err(config::unknown_kind("cell", kind, &known));
        }
    })
}
