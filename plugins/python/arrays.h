/// NumPy arrays as the plain pointers of the C ABI: exact dtype, shape and order, nothing is copied or converted.
#ifndef DSPARK_PYTHON_ARRAYS_H_
#define DSPARK_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dspark::python {

namespace nb = nanobind;

constexpr int64_t kAny = -1; /* a size that this array itself decides */

inline std::string text(const nb::object& object) { return nb::str(object).c_str(); }

inline std::string joined(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += (i ? ", " : "") + (sizes[i] == kAny ? std::string("?") : std::to_string(sizes[i]));
  }
  return text + "]";
}

template <class T>
constexpr const char* dtype_name();
template <>
constexpr const char* dtype_name<float>() {
  return "float32";
}
template <>
constexpr const char* dtype_name<int32_t>() {
  return "int32";
}
template <>
constexpr const char* dtype_name<int64_t>() {
  return "int64";
}

/// Which argument of which function, and the axes that its contract names ("R, K, Vd").
struct Place {
  const char* function;
  const char* name;
  const char* axes;
};

[[noreturn]] inline void refuse_array(const Place& place, const std::string& found, const std::string& wanted) {
  throw nb::value_error(
      (std::string(place.function) + ": " + place.name + " is " + found + ", wanted " + wanted).c_str());
}

/// A checked array; data() is null for None.
template <class T, bool kWritable = false>
class Array {
  using Handle = std::conditional_t<kWritable, nb::ndarray<>, nb::ndarray<nb::ro>>;
  using Pointer = std::conditional_t<kWritable, T*, const T*>;

 public:
  Array() = default;

  /// `sizes` entries of kAny match everything.
  Array(const Place& place, nb::handle object, const std::vector<int64_t>& sizes) {
    const std::string wanted = std::string(dtype_name<T>()) + " [" + place.axes + "] = " + joined(sizes) + ", C order";
    if (!nb::try_cast(object, handle_, /*convert=*/false)) {
      const std::string type = text(object.type().attr("__name__"));
      const std::string kind = kWritable && type == "ndarray" ? "an array that cannot be written" : "a " + type;
      refuse_array(place, kind, (kWritable ? "a writable array " : "an array ") + wanted);
    }
    const auto type = handle_.dtype();
    bool fits = type == nb::dtype<T>() && handle_.ndim() == sizes.size();
    std::vector<int64_t> found;
    for (size_t i = 0; i < handle_.ndim(); ++i) {
      found.push_back(static_cast<int64_t>(handle_.shape(i)));
      fits = fits && (sizes[i] == kAny || sizes[i] == found[i]);
    }
    const std::string dtype = text(object.attr("dtype"));
    if (!fits) refuse_array(place, dtype + " " + joined(found), wanted);
    int64_t stride = 1;
    for (size_t i = handle_.ndim(); i-- > 0;) {
      if (handle_.shape(i) > 1 && handle_.stride(i) != stride) {
        refuse_array(place, dtype + " " + joined(found) + " with strides", wanted);
      }
      stride *= static_cast<int64_t>(handle_.shape(i));
    }
    data_ = static_cast<Pointer>(handle_.data());
    sizes_ = std::move(found);
  }

  Pointer data() const { return data_; }
  int64_t size(size_t axis) const { return sizes_[axis]; }
  explicit operator bool() const { return data_ != nullptr || !sizes_.empty(); }

 private:
  Handle handle_;
  Pointer data_ = nullptr;
  std::vector<int64_t> sizes_;
};

template <class T>
Array<T> input(const Place& place, nb::handle object, const std::vector<int64_t>& sizes) {
  return Array<T>(place, object, sizes);
}

/// Absent for None.
template <class T>
Array<T> optional_input(const Place& place, nb::handle object, const std::vector<int64_t>& sizes) {
  return object.is_none() ? Array<T>() : Array<T>(place, object, sizes);
}

/// The caller's array, or a new one; `object` is what goes back to the caller.
template <class T>
struct Output {
  nb::object object;
  Array<T, true> array;

  Output(const Place& place, nb::object given, const std::vector<int64_t>& sizes) : object(std::move(given)) {
    if (object.is_none()) {
      nb::list shape;
      for (int64_t size : sizes) shape.append(size);
      object = nb::module_::import_("numpy").attr("empty")(nb::tuple(shape), nb::str(dtype_name<T>()));
    }
    array = Array<T, true>(place, object, sizes);
  }
  T* data() const { return array.data(); }
};

}  // namespace dspark::python
#endif  // DSPARK_PYTHON_ARRAYS_H_
