/// NumPy arrays as the plain pointers of the C ABI: exact dtype, shape and order, nothing is copied or converted.
#ifndef DSPARK_PYTHON_ARRAYS_H_
#define DSPARK_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dspark::python {

namespace nb = nanobind;

constexpr int64_t kAny = -1; /* a size that this array itself decides */

inline std::string text(const nb::object& object) { return nb::str(object).c_str(); }

using Sizes = std::vector<int64_t>;

inline std::string joined(const Sizes& sizes) {
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
template <>
constexpr const char* dtype_name<uint16_t>() {
  return "uint16";
}
template <>
constexpr const char* dtype_name<int8_t>() {
  return "int8";
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

  /// `sizes` entries of kAny match everything. Words are put together only when there is something to complain about.
  Array(const Place& place, nb::handle object, std::initializer_list<int64_t> sizes) {
    if (!nb::try_cast(object, handle_, /*convert=*/false)) refuse_object(place, object, sizes);
    bool fits = handle_.dtype() == nb::dtype<T>() && handle_.ndim() == sizes.size();
    bool contiguous = true;
    int64_t stride = 1;
    for (size_t i = fits ? sizes.size() : 0; i-- > 0;) {
      const int64_t size = static_cast<int64_t>(handle_.shape(i));
      const int64_t wanted = sizes.begin()[i];
      fits = fits && (wanted == kAny || wanted == size);
      contiguous = contiguous && (size <= 1 || handle_.stride(i) == stride);
      stride *= size;
    }
    // Without elements (stride is 0 by now) there is no order.
    if (!fits || (!contiguous && stride != 0))
      refuse_shape(place, object, sizes, fits ? " with gaps or another order" : "");
    data_ = static_cast<Pointer>(handle_.data());
    given_ = true;
  }

  Pointer data() const { return data_; }
  int64_t size(size_t axis) const { return static_cast<int64_t>(handle_.shape(axis)); }
  explicit operator bool() const { return given_; }

 private:
  static std::string wanted(const Place& place, const Sizes& sizes) {
    return std::string(dtype_name<T>()) + " [" + place.axes + "] = " + joined(sizes) + " in C order";
  }

  [[noreturn]] void refuse_object(const Place& place, nb::handle object, const Sizes& sizes) const {
    const std::string type = text(object.type().attr("__name__"));
    const std::string found = kWritable && type == "ndarray" ? "an array that cannot be written" : "a " + type;
    refuse_array(place, found, (kWritable ? "a writable array " : "an array ") + wanted(place, sizes));
  }

  [[noreturn]] void refuse_shape(const Place& place, nb::handle object, const Sizes& sizes, const char* order) const {
    Sizes found;
    for (size_t i = 0; i < handle_.ndim(); ++i) found.push_back(size(i));
    refuse_array(place, text(object.attr("dtype")) + " " + joined(found) + order, wanted(place, sizes));
  }

  Handle handle_;
  Pointer data_ = nullptr;
  bool given_ = false;
};

template <class T>
Array<T> input(const Place& place, nb::handle object, std::initializer_list<int64_t> sizes) {
  return Array<T>(place, object, sizes);
}

/// Absent for None.
template <class T>
Array<T> optional_input(const Place& place, nb::handle object, std::initializer_list<int64_t> sizes) {
  return object.is_none() ? Array<T>() : Array<T>(place, object, sizes);
}

/// The caller's array, or a new one; `object` is what goes back to the caller.
template <class T>
struct Output {
  nb::object object;
  Array<T, true> array;

  Output(const Place& place, nb::object given, std::initializer_list<int64_t> sizes) : object(std::move(given)) {
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
