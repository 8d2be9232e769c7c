//! *Devices*: the list that the library gives of what it has found.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use super::abi::{Abi, Device};
use super::context::left_behind;
use crate::arena::Errno;

/// The list. Devices on it may be opened as long as it lives; what was opened outlives it.
pub(super) struct Devices<'a> {
    abi: &'a Abi,
    list: NonNull<*mut Device>,
    count: usize,
}

impl<'a> Devices<'a> {
    /// What is there now.
    pub(super) fn ask(abi: &'a Abi) -> Result<Devices<'a>, Errno> {
        let mut count: c_int = 0;
        Errno::clear();
        // SAFETY: the number has the type that the call fills.
        let list = unsafe { (abi.get_device_list)(&mut count) };
        let list = NonNull::new(list).ok_or_else(left_behind)?;
        Ok(Devices { abi, list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Each device with its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NonNull<Device>, String)> {
        (0..self.count).filter_map(|at| {
            // SAFETY: the list has so many entries, and lives.
            let device = NonNull::new(unsafe { *self.list.as_ptr().add(at) })?;
            // SAFETY: the device is on the list.
            let name = unsafe { (self.abi.get_device_name)(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: the name is a string that lives as long as the device.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and no device that is on it alone is used any
        // more.
        unsafe { (self.abi.free_device_list)(self.list.as_ptr()) };
    }
}
