//! Zeros added around sequences, images and volumes, and elements cut off there.

use phalanx_graph::op::PadDim;
use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::position::one_sequence;
use super::sizes::{check_size, one_image, one_volume};
use crate::config::{self, Component, Described, Field, Kind};

/// Elements before and after the others in each of `N` directions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Edges<const N: usize>([[usize; 2]; N]);

/// A number of elements at an edge.
const EDGE: Kind = Kind::Whole(0, i32::MAX as i64 - 1);
const PAIR_OF_EDGES: Kind = Kind::List(&EDGE, 2, 2);

impl Edges<1> {
    const KIND: Kind = Kind::Worded(forms(1), &Kind::Either(&[EDGE, PAIR_OF_EDGES]));

    /// The two ends of a sequence.
    const fn of_steps(ends: [usize; 2]) -> Self {
        Self([ends])
    }
}

impl Edges<2> {
    const KIND: Kind = Kind::Worded(
        forms(2),
        &Kind::Either(&[EDGE, PAIR_OF_EDGES, Kind::List(&PAIR_OF_EDGES, 2, 2)]),
    );
}

impl Edges<3> {
    const KIND: Kind = Kind::Worded(
        forms(3),
        &Kind::Either(&[
            EDGE,
            Kind::List(&EDGE, 3, 3),
            Kind::List(&PAIR_OF_EDGES, 3, 3),
        ]),
    );
}

/// How JSON and YAML write the edges of a number of directions.
const fn forms(directions: usize) -> &'static str {
    match directions {
        1 => "whole numbers: 1 or [start, end]",
        2 => "whole numbers: 1, [height, width] or [[top, bottom], [left, right]]",
        _ => {
            "whole numbers: 1, [depth, height, width] or [[front, back], [top, bottom], [left, right]]"
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EdgesForm {
    All(usize),
    Each(Vec<usize>),
    Sides(Vec<[usize; 2]>),
}

/// As Keras writes them: a pair for each direction, of sequences the pair alone.
impl<const N: usize> Serialize for Edges<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [ends] => ends.serialize(serializer),
            sides => sides.serialize(serializer),
        }
    }
}

impl<'de, const N: usize> Deserialize<'de> for Edges<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = || serde::de::Error::custom(format!("expected {}", forms(N)));
        let sides = match EdgesForm::deserialize(deserializer).map_err(|_| wrong())? {
            EdgesForm::All(size) => vec![[size; 2]; N],
            EdgesForm::Each(ends) if N == 1 => {
                vec![ends.try_into().map_err(|_| wrong())?]
            }
            EdgesForm::Each(sizes) => sizes.into_iter().map(|size| [size; 2]).collect(),
            EdgesForm::Sides(_) if N == 1 => return Err(wrong()),
            EdgesForm::Sides(sides) => sides,
        };
        sides.try_into().map(Self).map_err(|_| wrong())
    }
}

impl<const N: usize> Edges<N> {
    /// Checks that all numbers of the setting called `what` are sane.
    fn check(&self, what: &str) -> Result<(), String> {
        let mut sizes = self.0.as_flattened().iter();
        sizes.try_for_each(|&size| check_size(&format!("{what} plus one"), size.saturating_add(1)))
    }

    /// Checks that something is left of inputs whose edges are cut.
    fn check_fits(&self, change: i64, input: &Shape) -> Result<(), String> {
        let mut sides = input.dims[1..=N].iter().zip(&self.0);
        sides.try_for_each(|(&size, &[start, end])| {
            if change == ADDED || start.saturating_add(end) < size {
                return Ok(());
            }
            Err(format!(
                "`cropping` must be less than the {size} elements of its direction, got {start} and {end}"
            ))
        })
    }

    /// The input with zeros more, or elements less, at its edges.
    #[track_caller]
    fn changed(&self, change: i64, x: &Tensor) -> Tensor {
        let edges = self.0.iter().map(|&[start, end]| PadDim {
            low: change * start as i64,
            high: change * end as i64,
            interior: 0,
        });
        let whole = [PadDim::default()];
        let pads: Vec<PadDim> = whole.into_iter().chain(edges).chain(whole).collect();
        x.pad(&pads, 0.0)
    }
}

/// What becomes of edges: they are added, or cut.
const ADDED: i64 = 1;
const CUT: i64 = -1;

macro_rules! at_edges {
    (
        $(#[$doc:meta])* $name:ident($n:literal, $sides:ty, $edges:path), $kind:literal, $about:literal,
        $field:ident: $field_doc:literal, $default_doc:literal $default:literal, $one_input:ident, $change:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $field: Edges<$n>,
        }

        impl $name {
            /// As many elements at every edge.
            #[must_use]
            pub const fn new($field: usize) -> Self {
                let $field = Edges([[$field; 2]; $n]);
                Self { $field }
            }

            /// Numbers of elements before and after the others, for each direction.
            #[must_use]
            pub const fn sides($field: $sides) -> Self {
                let $field = $edges($field);
                Self { $field }
            }
        }

        #[doc = $default_doc]
        impl Default for $name {
            fn default() -> Self {
                Self::new($default)
            }
        }

        impl Described for $name {
            const COMPONENT: Component = Component {
                name: $kind,
                doc: $about,
                fields: &[Field::optional(
                    stringify!($field),
                    Edges::<$n>::KIND,
                    $field_doc,
                )],
            };
        }

        impl Layer for $name {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn config(&self) -> Value {
                config::write(self.kind(), self)
            }

            fn check_settings(&self) -> Result<(), String> {
                self.$field.check(concat!("`", stringify!($field), "`"))
            }

            fn check(&self, inputs: &[Shape]) -> Result<(), String> {
                self.$field.check_fits($change, $one_input(inputs)?)
            }

            fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                self.$field.changed($change, &inputs[0])
            }
        }
    };
}

at_edges! {
    /// Zeros before and after the steps of `[batch, steps, features]`; kind `zero_padding1d`.
    ///
    /// In JSON and YAML, `padding` is one number or `[start, end]`. The output has no mask, as in Keras.
    ///
    /// ```
    /// use phalanx::nn::{Sequential, ZeroPadding1d};
    ///
    /// let model = Sequential::new([5, 4]).add(ZeroPadding1d::sides([2, 0])).build()?;
    /// assert_eq!(model.outputs()[0].dims, [7, 4]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ZeroPadding1d(1, [usize; 2], Edges::of_steps), "zero_padding1d", "adds steps of zeros to sequences",
    padding: "number of steps", "One step at each end, as in Keras." 1, one_sequence, ADDED
}
at_edges! {
    /// Zeros around images `[batch, height, width, channels]`; kind `zero_padding2d`.
    ///
    /// In JSON and YAML, `padding` is one number, `[height, width]`, or `[[top, bottom], [left, right]]`.
    ZeroPadding2d(2, [[usize; 2]; 2], Edges), "zero_padding2d", "adds zeros around images",
    padding: "number of rows and columns", "One zero on every side, as in Keras." 1, one_image, ADDED
}
at_edges! {
    /// Zeros around volumes `[batch, depth, height, width, channels]`; kind `zero_padding3d`.
    ///
    /// In JSON and YAML, `padding` is one number, `[depth, height, width]`, or a pair for each of them.
    ZeroPadding3d(3, [[usize; 2]; 3], Edges), "zero_padding3d", "adds zeros around volumes",
    padding: "number of zeros in each direction", "One zero on every side, as in Keras." 1, one_volume, ADDED
}
at_edges! {
    /// The steps of `[batch, steps, features]` without the first and the last; kind `cropping1d`.
    ///
    /// In JSON and YAML, `cropping` is one number or `[start, end]`. The output has no mask, as in Keras.
    ///
    /// ```
    /// use phalanx::nn::{Cropping1d, Sequential};
    ///
    /// let model = Sequential::new([5, 4]).add(Cropping1d::sides([0, 3])).build()?;
    /// assert_eq!(model.outputs()[0].dims, [2, 4]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    Cropping1d(1, [usize; 2], Edges::of_steps), "cropping1d", "cuts steps off the ends of sequences",
    cropping: "number of steps", "One step at each end, as in Keras." 1, one_sequence, CUT
}
at_edges! {
    /// The middle of images `[batch, height, width, channels]`; kind `cropping2d`.
    ///
    /// In JSON and YAML, `cropping` is one number, `[height, width]`, or `[[top, bottom], [left, right]]`.
    Cropping2d(2, [[usize; 2]; 2], Edges), "cropping2d", "cuts edges off images",
    cropping: "number of rows and columns", "Nothing is cut, as in Keras, whose other croppings cut 1." 0, one_image, CUT
}
at_edges! {
    /// The middle of volumes `[batch, depth, height, width, channels]`; kind `cropping3d`.
    ///
    /// In JSON and YAML, `cropping` is one number, `[depth, height, width]`, or a pair for each of them.
    Cropping3d(3, [[usize; 2]; 3], Edges), "cropping3d", "cuts edges off volumes",
    cropping: "number of elements in each direction", "One element on every side, as in Keras." 1, one_volume, CUT
}
