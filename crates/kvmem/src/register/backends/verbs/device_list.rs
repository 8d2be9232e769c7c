//! *Device list*: the library's list of devices.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use super::abi::{IbvDevice, VerbsAbi};
use super::context::last_errno;
use crate::arena::Errno;

/// The list of devices. A device can be opened while the list exists; an open device outlives it.
pub(super) struct DeviceList<'a> {
    abi: &'a VerbsAbi,
    list: NonNull<*mut IbvDevice>,
    count: usize,
}

impl<'a> DeviceList<'a> {
    /// Returns the current list.
    pub(super) fn query(abi: &'a VerbsAbi) -> Result<DeviceList<'a>, Errno> {
        let mut count: c_int = 0;
        Errno::clear();
        // SAFETY: the call stores a number at `count`, which has its type and is borrowed by this
        // call alone.
        let list = unsafe { (abi.get_device_list)(&mut count) };
        let list = NonNull::new(list).ok_or_else(last_errno)?;
        Ok(DeviceList { abi, list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Returns each device with its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NonNull<IbvDevice>, String)> {
        (0..self.count).filter_map(|at| {
            // SAFETY: the library returned a list of `count` initialized entries, `at` is less than
            // `count`, and only `drop` frees the list.
            let device = NonNull::new(unsafe { *self.list.as_ptr().add(at) })?;
            // SAFETY: `device` is an entry of the list, so it points to a device.
            let name = unsafe { (self.abi.get_device_name)(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: the name ends with a zero and is part of the device, which lives at least as
            // long as the list. It is copied before this closure returns.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the library returned the list, and it is freed once. `iter` borrows `self`, so no
        // code reads the list any more; open devices do not need it.
        unsafe { (self.abi.free_device_list)(self.list.as_ptr()) };
    }
}
