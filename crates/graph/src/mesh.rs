//! Meshes of devices, and how tensors are cut over them.

use std::fmt;

use crate::{AlignedBytes, HostTensor, Shape};

/// Devices in a grid whose axes have names: device `i` is the `i`-th place, the last axis counted fastest.
///
/// ```
/// use phalanx_graph::Mesh;
///
/// let mesh = Mesh::new([("data", 2), ("model", 4)]);
/// assert_eq!(mesh.size(), 8);
/// assert_eq!(mesh.place(5), [1, 1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// Name and size of each axis.
    pub axes: Vec<(String, usize)>,
}

/// How a tensor is cut over a mesh: for each dim the axis over which it is cut, or none.
///
/// Over the other axes the tensor is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sharding {
    /// The axis of each dim.
    pub dims: Vec<Option<String>>,
}

impl Mesh {
    /// A mesh of these axes.
    #[must_use]
    pub fn new<'a>(axes: impl IntoIterator<Item = (&'a str, usize)>) -> Self {
        let axes = axes.into_iter();
        Self {
            axes: axes.map(|(name, size)| (name.to_owned(), size)).collect(),
        }
    }

    /// How many devices there are: the product of the sizes.
    #[must_use]
    pub fn size(&self) -> usize {
        let sizes = self.axes.iter().map(|&(_, size)| size);
        sizes.fold(1, usize::saturating_mul)
    }

    /// The size of an axis.
    #[must_use]
    pub fn axis(&self, name: &str) -> Option<usize> {
        let mut axes = self.axes.iter();
        axes.find(|(other, _)| other == name).map(|&(_, size)| size)
    }

    /// The place of a device along each axis.
    #[must_use]
    pub fn place(&self, device: usize) -> Vec<usize> {
        let mut rest = device;
        let mut place: Vec<usize> = (self.axes.iter().rev())
            .map(|&(_, size)| {
                let at = rest % size;
                rest /= size;
                at
            })
            .collect();
        place.reverse();
        place
    }

    /// What is wrong with the axes, if anything.
    ///
    /// # Errors
    /// No axis, one of size 0 or without a name, or two of one name.
    pub fn check(&self) -> Result<(), String> {
        if self.axes.is_empty() {
            return Err("a mesh has no axes; give it one, as in [(\"data\", 2)]".into());
        }
        for (index, (name, size)) in self.axes.iter().enumerate() {
            if *size == 0 || name.is_empty() {
                return Err(format!(
                    "axis `{name}` of {self} has the size {size}; expected a name and a size of at least 1"
                ));
            }
            if self.axes[..index].iter().any(|(other, _)| other == name) {
                return Err(format!("{self} has two axes `{name}`; rename one"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Mesh {
    /// `mesh data=2 model=4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mesh")?;
        let mut axes = self.axes.iter();
        axes.try_for_each(|(name, size)| write!(f, " {name}={size}"))
    }
}

impl Sharding {
    /// Cut along the dims that name an axis.
    #[must_use]
    pub fn new<'a>(dims: impl IntoIterator<Item = Option<&'a str>>) -> Self {
        let dims = dims.into_iter().map(|axis| axis.map(str::to_owned));
        Self {
            dims: dims.collect(),
        }
    }

    /// Not cut: repeated on every device.
    #[must_use]
    pub fn replicated(rank: usize) -> Self {
        Self {
            dims: vec![None; rank],
        }
    }

    /// The first dim cut over an axis: batches over the data axis.
    #[must_use]
    pub fn rows(axis: &str, rank: usize) -> Self {
        let mut sharding = Self::replicated(rank);
        if let Some(first) = sharding.dims.first_mut() {
            *first = Some(axis.to_owned());
        }
        sharding
    }

    /// What is wrong with cutting a tensor of `shape` this way over `mesh`, if anything.
    ///
    /// # Errors
    /// Another number of dims, an axis that the mesh has not or that cuts twice, a dim that does not divide.
    pub fn check(&self, shape: &Shape, mesh: &Mesh) -> Result<(), String> {
        if self.dims.len() != shape.rank() {
            return Err(format!(
                "sharding {self} is for {} dims, but the tensor is {shape}; name an axis or none for each dim",
                self.dims.len()
            ));
        }
        for (dim, axis) in self.dims.iter().enumerate() {
            let Some(axis) = axis else { continue };
            let Some(size) = mesh.axis(axis) else {
                return Err(format!(
                    "sharding {self} of {shape} names the axis `{axis}`, expected one of {mesh}; add it to the mesh, of size 1 if nothing is to be cut over it"
                ));
            };
            if self.dims[..dim].contains(&Some(axis.clone())) {
                return Err(format!(
                    "sharding {self} of {shape} names the axis `{axis}` twice; cut one dim over it"
                ));
            }
            if !shape.dims[dim].is_multiple_of(size) {
                return Err(format!(
                    "dim {dim} of {shape} is cut over the axis `{axis}` of {mesh}, but {} does not divide by {size}; change the size, or leave the dim whole",
                    shape.dims[dim]
                ));
            }
        }
        Ok(())
    }

    /// The shape that one device holds of a tensor; checked before.
    #[must_use]
    pub fn local(&self, shape: &Shape, mesh: &Mesh) -> Shape {
        let counts = self.counts(mesh);
        let dims = shape.dims.iter().zip(counts);
        let dims: Vec<usize> = dims.map(|(size, count)| size / count).collect();
        Shape::new(shape.dtype, dims)
    }

    /// The part of a tensor that a device holds; checked before.
    #[must_use]
    pub fn part(&self, tensor: &HostTensor, mesh: &Mesh, device: usize) -> HostTensor {
        let local = self.local(tensor.shape(), mesh);
        if local == *tensor.shape() {
            return tensor.clone();
        }
        let mut bytes = AlignedBytes::zeroed(local.byte_len());
        let target = bytes.as_mut_slice();
        let starts = self.starts(&local, mesh, device);
        for (from, to, length) in runs(tensor.shape(), &local, &starts) {
            target[to..to + length].copy_from_slice(&tensor.bytes()[from..from + length]);
        }
        HostTensor::from_aligned(local, bytes)
    }

    /// The tensor of `shape` whose parts the devices hold; checked before.
    #[must_use]
    pub fn whole(&self, shape: &Shape, mesh: &Mesh, parts: &[HostTensor]) -> HostTensor {
        let local = self.local(shape, mesh);
        if local == *shape {
            return parts[0].clone();
        }
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        let target = bytes.as_mut_slice();
        for (device, part) in parts.iter().enumerate() {
            let starts = self.starts(&local, mesh, device);
            for (to, from, length) in runs(shape, &local, &starts) {
                target[to..to + length].copy_from_slice(&part.bytes()[from..from + length]);
            }
        }
        HostTensor::from_aligned(shape.clone(), bytes)
    }

    /// Into how many parts each dim is cut.
    fn counts<'a>(&'a self, mesh: &'a Mesh) -> impl Iterator<Item = usize> + 'a {
        let size = |axis: &Option<String>| mesh.axis(axis.as_ref()?);
        self.dims.iter().map(move |axis| size(axis).unwrap_or(1))
    }

    /// Where a device's part begins, in each dim.
    fn starts(&self, local: &Shape, mesh: &Mesh, device: usize) -> Vec<usize> {
        let place = mesh.place(device);
        let along = |axis: &Option<String>| {
            let axis = axis.as_ref()?;
            let index = mesh.axes.iter().position(|(name, _)| name == axis)?;
            Some(place[index])
        };
        let dims = self.dims.iter().zip(&local.dims);
        dims.map(|(axis, size)| along(axis).unwrap_or(0) * size)
            .collect()
    }
}

impl<const N: usize> From<[Option<&str>; N]> for Sharding {
    fn from(dims: [Option<&str>; N]) -> Self {
        Self::new(dims)
    }
}

impl fmt::Display for Sharding {
    /// `[data, _]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.dims.iter();
        let dims: Vec<&str> = dims.map(|axis| axis.as_deref().unwrap_or("_")).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

/// The runs of bytes that a part at `starts` has in common with the whole: where in the whole, where in the part, length.
fn runs(
    whole: &Shape,
    part: &Shape,
    starts: &[usize],
) -> impl Iterator<Item = (usize, usize, usize)> {
    let (rows, columns) = (part.dims.clone(), whole.dims.clone());
    let last = rows.last().copied().unwrap_or(1);
    let (size, length) = (whole.dtype.size(), last * whole.dtype.size());
    let count = part.len().checked_div(last).unwrap_or(0);
    let starts = starts.to_vec();
    (0..count).map(move |run| {
        let (mut rest, mut stride, mut at) = (run * last, 1, 0);
        for dim in (0..rows.len()).rev() {
            at += (rest % rows[dim] + starts[dim]) * stride;
            rest /= rows[dim];
            stride *= columns[dim];
        }
        (at * size, run * length, length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(dims: &[usize]) -> HostTensor {
        let values: Vec<f32> = (0..dims.iter().product())
            .map(|value| value as f32)
            .collect();
        HostTensor::new(dims.to_vec(), &values)
    }

    #[test]
    fn devices_are_counted_by_the_last_axis_first() {
        let mesh = Mesh::new([("a", 2), ("b", 3)]);
        let places: Vec<Vec<usize>> = (0..6).map(|device| mesh.place(device)).collect();
        assert_eq!(
            places,
            [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]].map(Vec::from)
        );
    }

    #[test]
    fn parts_are_cut_and_put_together() {
        let mesh = Mesh::new([("a", 2), ("b", 3)]);
        let tensor = counted(&[2, 4, 3]);
        for axes in [
            [None, None, None],
            [Some("a"), None, Some("b")],
            [None, Some("a"), None],
            [None, Some("a"), Some("b")],
        ] {
            let sharding = Sharding::new(axes);
            sharding.check(tensor.shape(), &mesh).unwrap();
            let parts: Vec<HostTensor> = (0..mesh.size())
                .map(|device| sharding.part(&tensor, &mesh, device))
                .collect();
            let whole = sharding.whole(tensor.shape(), &mesh, &parts);
            assert_eq!(whole, tensor, "{sharding}");
        }
        // Row 1 of the second dim's upper half, last column: device (1, 2).
        let part = Sharding::new([None, Some("a"), Some("b")]).part(&tensor, &mesh, 5);
        assert_eq!(part.to_f64(), [8.0, 11.0, 20.0, 23.0]);
    }

    #[test]
    fn mistakes_say_what_is_wrong() {
        let mesh = Mesh::new([("data", 2), ("model", 3)]);
        let wrong = |axes: &[Option<&str>], dims: [usize; 2]| {
            let sharding = Sharding::new(axes.iter().copied());
            sharding.check(&Shape::f32(dims), &mesh).unwrap_err()
        };
        assert_eq!(
            wrong(&[Some("modell"), None], [4, 6]),
            "sharding [modell, _] of f32[4,6] names the axis `modell`, expected one of mesh data=2 model=3; add it to the mesh, of size 1 if nothing is to be cut over it"
        );
        assert_eq!(
            wrong(&[None, Some("model")], [4, 8]),
            "dim 1 of f32[4,8] is cut over the axis `model` of mesh data=2 model=3, but 8 does not divide by 3; change the size, or leave the dim whole"
        );
        assert_eq!(
            wrong(&[Some("data")], [4, 8]),
            "sharding [data] is for 1 dims, but the tensor is f32[4,8]; name an axis or none for each dim"
        );
        assert_eq!(
            wrong(&[Some("data"), Some("data")], [4, 8]),
            "sharding [data, data] of f32[4,8] names the axis `data` twice; cut one dim over it"
        );
        let mesh = |axes: &[(&str, usize)]| Mesh::new(axes.iter().copied()).check().unwrap_err();
        assert!(mesh(&[("a", 2), ("a", 2)]).contains("two axes `a`"));
        assert!(mesh(&[("a", 0)]).contains("has the size 0"));
        assert!(mesh(&[]).contains("no axes"));
    }
}
