//! *Object*: a value in use, which returns to its cache when it is dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::object_cache::ObjectCache;
use super::slab_error::SlabError;

impl<T: Send + 'static> ObjectCache<T> {
    /// Returns a cached object, or a newly constructed one. O(1) besides the constructor. A panic
    /// of the constructor propagates and leaks nothing.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::NoMemory`] if no memory is left.
    #[inline]
    pub fn get(&self) -> Result<Object<'_, T>, SlabError> {
        let at = self.take()?;
        Ok(Object { cache: self, at })
    }

    /// Returns an object like [`get`](Self::get), in a handle that keeps the cache alive and has no
    /// lifetime.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::NoMemory`] if no memory is left.
    pub fn get_owned(&self) -> Result<OwnedObject<T>, SlabError> {
        let at = self.take()?;
        Ok(OwnedObject { cache: self.clone(), at })
    }

    /// Appends `count` objects to `out`.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::NoMemory`] if no memory is left; `out` keeps the objects that were
    /// appended before.
    pub fn get_batch<'a>(
        &'a self,
        count: usize,
        out: &mut Vec<Object<'a, T>>,
    ) -> Result<(), SlabError> {
        out.reserve(count);
        for _ in 0..count {
            out.push(self.get()?);
        }
        Ok(())
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)?, $cache:ty) => {
        $(#[$doc])*
        pub struct $name<$($life,)? T: Send + 'static> {
            cache: $cache,
            at: NonNull<T>,
        }

        // SAFETY: the handle is the only access to its value, like a box, and the value is `Send`;
        // any thread may use the cache.
        unsafe impl<$($life,)? T: Send + 'static> Send for $name<$($life,)? T> {}
        // SAFETY: a shared handle gives only a shared reference to the value.
        unsafe impl<$($life,)? T: Send + Sync + 'static> Sync for $name<$($life,)? T> {}

        impl<$($life,)? T: Send + 'static> $name<$($life,)? T> {
            /// Moves the value out of its handle; it is not cached afterwards.
            pub fn into_inner(object: Self) -> T {
                let object = ManuallyDrop::new(object);
                let cache = &object.cache;
                // SAFETY: the handle owns the value. It is not dropped, so the value is moved out
                // once.
                let value = unsafe { object.at.read() };
                // SAFETY: the memory came from the cache's store. Its value was moved out, and the
                // handle, which alone knows it, does not use it again.
                unsafe { cache.inner.magazines.source().give(object.at) };
                $name::<$($life,)? T>::release_handle(object);
                value
            }
        }

        impl<$($life,)? T: Send + 'static> Deref for $name<$($life,)? T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                // SAFETY: the handle owns the value, and the borrow of the handle excludes `&mut`.
                unsafe { self.at.as_ref() }
            }
        }

        impl<$($life,)? T: Send + 'static> DerefMut for $name<$($life,)? T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: the handle owns the value, and its mutable borrow excludes all others.
                unsafe { self.at.as_mut() }
            }
        }

        impl<$($life,)? T: Send + 'static> Drop for $name<$($life,)? T> {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: the object came from `take` of this cache. The handle owns it and is
                // being dropped, so no code uses it afterwards.
                unsafe { self.cache.put(self.at) };
            }
        }

        impl<$($life,)? T: Send + fmt::Debug + 'static> fmt::Debug for $name<$($life,)? T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

handle! {
    /// An object that returns to its cache when it is dropped.
    Object<'a>, &'a ObjectCache<T>
}

handle! {
    /// An object that returns to its cache when it is dropped and keeps the cache alive until then.
    OwnedObject, ObjectCache<T>
}

impl<'a, T: Send + 'static> Object<'a, T> {
    fn release_handle(_: ManuallyDrop<Self>) {}
}

impl<T: Send + 'static> OwnedObject<T> {
    /// Drops the handle of the cache only.
    fn release_handle(mut object: ManuallyDrop<Self>) {
        // SAFETY: the handle is owned, not used again, and not dropped, so its cache is dropped
        // once.
        unsafe { std::ptr::drop_in_place(&mut object.cache) };
    }
}
