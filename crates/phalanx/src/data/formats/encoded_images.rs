//! Images that stand in the records of a format, for `Dataset::from_images`.

use super::{EncodedImage, LostBytes, RecordLocation, Records, placed};
use crate::Result;

/// Records of any format, each with an image: what [`Dataset::from_images`](crate::data::Dataset::from_images) reads beside folders.
///
/// An error of the function about a record gets the file and the place of the record.
#[derive(Debug)]
pub struct EncodedImages<R, F> {
    records: R,
    image: F,
}

impl<R, F> EncodedImages<R, F>
where
    R: Records,
    F: Fn(R::Item) -> Result<EncodedImage> + Send + Sync + 'static,
{
    /// The images that `image` finds in records.
    pub const fn new(records: R, image: F) -> Self {
        Self { records, image }
    }

    fn image(&self, i: usize, item: Result<R::Item>) -> Result<EncodedImage> {
        (self.image)(item?).map_err(|error| placed(&self.records, i, error))
    }
}

impl<R, F> Records for EncodedImages<R, F>
where
    R: Records,
    F: Fn(R::Item) -> Result<EncodedImage> + Send + Sync + 'static,
{
    type Item = EncodedImage;

    fn len(&self) -> usize {
        self.records.len()
    }

    fn get(&self, i: usize) -> Result<EncodedImage> {
        self.image(i, self.records.get(i))
    }

    fn get_each(&self, indices: &[usize]) -> Vec<Result<EncodedImage>> {
        let items = indices.iter().zip(self.records.get_each(indices));
        items.map(|(&i, item)| self.image(i, item)).collect()
    }

    fn per_file(&self) -> Vec<usize> {
        self.records.per_file()
    }

    fn place(&self, i: usize) -> RecordLocation {
        self.records.place(i)
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.records.lost()
    }
}
