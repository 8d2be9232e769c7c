//! *Data type*: the argument `data_type`, PyTorch's name of the type of a value's elements.

use kvmem::tier::DataType;
use pyo3::prelude::*;

use crate::error::{self, ArgumentError};

/// The type of a value's elements.
#[derive(Default)]
pub(crate) struct ElementType(pub(crate) DataType);

impl<'a, 'py> FromPyObject<'a, 'py> for ElementType {
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<ElementType, ArgumentError> {
        let name = given.extract::<&str>()?;
        DataType::named(name).map(ElementType).ok_or_else(|| {
            let names = DataType::ALL.map(DataType::name).join(" or ");
            error::bad_value(given.py(), format!("data_type is {name:?}: give {names}")).into()
        })
    }
}
